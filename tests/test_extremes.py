"""Estimators at the ends of their settings: rounding is not a signal, no power overflows, and any number may name a group."""

import math
from typing import Any

import pytest
import torch
from correcting import pair
from golden.estimator_advantages import paid
from golden.estimator_zoo import advantage
from golden.records import COMPONENTS, call
from torch import Tensor

from lossary.batch import Batch, SimulatedRanks
from lossary.registry import bounds_of

DTYPES = (torch.float32, torch.float64)


def first(name: str, params: dict[str, Any], batch: Batch, state: Any = None) -> tuple[Tensor, Any]:
    """The advantages of the first step, or of the next one after a state, and the state."""
    c = COMPONENTS["advantage", name]
    said = c.params.model_validate(params).model_dump()
    given = (
        {"sequences": batch.sequences, "state": state if state is not None else c.init(**said)}
        if c.init
        else {"sequences": batch.sequences}
    )
    made = c.function(*(given[i.name] if i.name in given else batch.column(i.name, i.level) for i in c.inputs), **said)
    return made if c.init else (made, None)


NOISY = [
    ("whiten", {}), ("whiten", {"unbiased": False}), ("running-whiten", {}), ("running-whiten", {"shift_mean": False}),
    ("running-baseline", {}), ("running-baseline", {"decay": 0.5}), ("spo", {}), ("batch-normalise", {"floor": 1e-300}),
    ("sequence-whiten", {"floor": 1e-300}), ("group-normalise", {}), ("group-normalise", {"mean_level": "batch"}),
    ("group-normalise", {"std_level": "batch", "std_unbiased": False}), ("group-normalise", {"mean_leave1out": True}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params"), NOISY)
def test_a_spread_that_is_only_rounding_gives_nothing(name: str, params: dict[str, Any]) -> None:
    """Seven equal values of 0.1, and values that a sum in another order would have rounded to."""
    exactly = {} if "epsilon" not in COMPONENTS["advantage", name].params.model_fields else {"epsilon": 0.0}
    for dtype in DTYPES:
        equal = torch.full((7,), 0.1, dtype=dtype)
        nearly = equal * (1 + torch.finfo(dtype).eps * torch.tensor([0, 1, 0, -1, 0, 1, 0], dtype=dtype))
        other = equal * (1 + 1e-3 * torch.arange(7, dtype=dtype))
        for values, still in ((equal, True), (nearly, True), (other, False)):
            ids = torch.arange(7) if name == "spo" else torch.zeros(7, dtype=torch.long)
            columns = {"rewards": values, "advantages": values[:, None]}
            batch = Batch.from_padded(torch.ones(7, 1), group_ids=ids, **columns)
            if name == "sequence-whiten":
                batch = Batch.from_padded(torch.ones(1, 7), advantages=values[None])
            made, state = first(name, {**params, **exactly}, batch)
            assert made.isfinite().all()
            assert bool((made == 0).all()) is still
            if state is not None and still:
                assert (first(name, {**params, **exactly}, batch, state)[0] == 0).all()


@pytest.mark.parametrize("group", [2**63 - 1, -(2**63), 0, -1])
def test_any_number_may_name_a_prompt(group: int) -> None:
    """Remembered like any other, also while places are free, while none is, and beside its neighbours."""
    want: list[list[float]] = []
    for name in (group, 7):
        state, seen = None, list[float]()
        for step in range(4):
            batch = paid(torch.ones(3, 1), torch.tensor([1.0, 0.0, step % 2], dtype=torch.float64), "error", group_ids=[name, 5, name])
            made, state = first("spo", {"capacity": 3}, batch, state)
            seen += made.tolist()
        assert int((state["seen"] > 0).sum()) == 2
        assert name in state["ids"][state["seen"] > 0].tolist()
        want.append(seen)
    assert want[0] == pytest.approx(want[1])


def test_a_prompt_that_bears_the_mark_of_free_places_is_forgotten_like_any_other() -> None:
    state = None
    for ids in ([2**63 - 1, 1], [2, 3]):
        _, state = first("spo", {"capacity": 2}, paid(torch.ones(2, 1), torch.tensor([1.0, 0.0]), "error", group_ids=ids), state)
        assert sorted(state["ids"].tolist()) == sorted(ids)
    fresh = paid(torch.ones(2, 1), torch.tensor([1.0, 0.0]), "error", group_ids=[2**63 - 1, 1])
    assert first("spo", {"capacity": 2}, fresh, state)[0].tolist() == first("spo", {"capacity": 2}, fresh)[0].tolist()


def test_a_table_of_prompts_is_no_larger_than_a_step_can_sort() -> None:
    bounds = {name: limits for name, _, limits, _, _ in bounds_of(COMPONENTS["advantage", "spo"].params)}
    assert bounds["capacity"] == ">= 1 and <= 1.04858e+06"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("floor", [0.0, 1e-8, 1e300])
@pytest.mark.parametrize("power", [0.0, 2.0, 400.0, 1e5, 1e308])
def test_no_power_of_a_reward_overflows(power: float, floor: float, dtype: torch.dtype) -> None:
    for scale in (0.0, 1e-30, 1e-3, 1.0, 10.0, 1e30):
        rewards = scale * torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=dtype)
        batch = Batch.from_packed([1] * 4, rewards=rewards, rollout_log_prob=torch.zeros(4))
        weight, _ = pair(call("correction", "pf-ppo", {"weight_pow": power, "floor": floor}, batch))
        assert weight is not None
        assert weight.isfinite().all()
        says = floor > 0 or power == 0 or scale > 0
        assert float(weight.mean()) == pytest.approx(1.0 if says else 0.0, rel=1e-6)
        if power >= 400 and scale == 10 and floor < 1:
            assert weight.tolist() == pytest.approx([2, 2, 0, 0])


def test_the_values_of_a2po_go_from_the_best_to_the_mean() -> None:
    frozen = torch.tensor([[1.0, 2.0, 6.0], [0.5, math.nan, 0.25], [math.nan] * 3], dtype=torch.float64)
    batch = paid(torch.ones(3, 1), torch.zeros(3, dtype=torch.float64), "error", frozen_rewards=frozen)
    for beta, want in ((1e-320, [6.0, 0.5, 0.0]), (1e-9, [6.0, 0.5, 0.0]), (1e15, [3.0, 0.375, 0.0]), (1e300, [3.0, 0.375, 0.0])):
        assert (-advantage("a2po", {"beta1": beta}, batch)).tolist() == pytest.approx(want, rel=1e-7)
    nothing = paid(torch.ones(3, 1), torch.ones(3, dtype=torch.float64), "error", frozen_rewards=torch.zeros(3, 0))
    assert advantage("a2po", {}, nothing).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_value_in_the_loss_of_a2po_goes_from_the_best_to_the_mean(dtype: torch.dtype) -> None:
    """An empty sequence, whose reward is the largest, has no part in it."""
    zero = torch.zeros(5, 1, dtype=dtype)
    rewards = torch.tensor([1.0, 2.0, 6.0, -4.0, 99.0], dtype=dtype)
    batch = Batch.from_padded(
        torch.tensor([[1], [1], [1], [1], [0]]), log_prob=zero, ref_log_prob=zero, rewards=rewards, group_ids=[0, 0, 0, 1, 0]
    )
    for beta, want in ((1e-320, 6.0), (1e-9, 6.0), (1e9, 3.0), (1e300, 3.0)):
        loss = call("policy_loss", "a2po", {"beta1": beta}, batch)[0]
        assert loss[:4].tolist() == pytest.approx([(want - r) ** 2 for r in (1, 2, 6)] + [0.0], rel=1e-5, abs=1e-9)
        assert loss.isfinite().all()


def test_the_maximum_of_a_group_is_over_all_ranks() -> None:
    scores = torch.tensor([1.0, 5.0, 2.0, -3.0])
    ids = torch.tensor([4, 9, 9, 4])

    def mine(ranks: SimulatedRanks, rank: int) -> list[float]:
        sequences = Batch.from_packed([1, 1], group_ids=ids[2 * rank : 2 * rank + 2]).sequences.across(ranks)
        return sequences.group_spread(sequences.group_max(scores[2 * rank : 2 * rank + 2])).tolist()

    assert SimulatedRanks.run(2, mine) == [[1.0, 5.0], [5.0, 1.0]]
    whole = Batch.from_packed([1] * 4, group_ids=ids).sequences
    assert whole.group_spread(whole.group_max(scores)).tolist() == [1.0, 5.0, 5.0, 1.0]


def test_a_count_stays_a_number_that_every_reader_of_yaml_agrees_on() -> None:
    limits = {name: said for name, _, said, _, _ in bounds_of(COMPONENTS["auxiliary_loss", "distill-student-topk"].params)}
    assert limits["topk"] == "> 0 and <= 9.0072e+15"
