"""Reward terms, filters and what remembers: beside plain loops, over ranks, and by what they promise."""

import math
from itertools import accumulate
from typing import Any

import pytest
import torch
from golden.estimator_advantages import paid
from golden.estimator_rewards import of_lengths, shaped
from golden.estimator_zoo import advantage, single
from golden.records import COMPONENTS, call
from pydantic import ValidationError
from torch import Tensor
from worlds import World

from lossary import Batch, ColumnError, compose
from lossary.batch import ONE_RANK, SimulatedRanks
from lossary.registry import Component

SHAPING = [c for (kind, _), c in COMPONENTS.items() if kind in ("reward", "filter")] + [COMPONENTS["correction", "pf-ppo"]]
REQUIRED = {"overlong": {"max_resp_len": 6, "overlong_buffer_len": 3}, "seq-logprob-error": {"seq_logprob_error_threshold": 1.5}}
NAN = float("nan")


def doubles(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def stay(name: str, params: dict[str, Any], batch: Batch) -> list[bool]:
    kept: list[bool] = call("filter", name, params, batch).tolist()
    return kept


@pytest.mark.parametrize("component", SHAPING, ids=lambda c: c.name)
@pytest.mark.parametrize("cut", [[9], [3, 6], [1, 4, 2, 2], [0, 9]])
def test_shaping_is_exact_over_ranks(component: Component, cut: list[int]) -> None:
    world = World(5)
    world.columns["prompt_lengths"] = torch.arange(9) * 2
    params = component.params(**REQUIRED.get(component.name, {})).model_dump()
    ends = list(accumulate(cut))

    def run(ranks: Any, rows: list[int]) -> Tensor:
        batch = world.batch(rows)
        sequences = batch.sequences.across(ranks)
        made = component.function(
            *(sequences if i.name == "sequences" else batch.column(i.name, i.level) for i in component.inputs), **params
        )
        return made[0] if isinstance(made, tuple) else made

    want = run(ONE_RANK, list(range(9)))
    got = torch.cat(SimulatedRanks.run(len(cut), lambda ranks, k: run(ranks, list(range(ends[k] - cut[k], ends[k])))))
    assert got.dtype == want.dtype
    torch.testing.assert_close(got.double(), want.double(), rtol=1e-12, atol=1e-12)


# ── rewards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("bounded", [True, False])
def test_overlong_by_its_formula_and_what_counts_as_length(bounded: bool) -> None:
    lengths = [0, 1, 5, 8, 9, 10, 14]
    batch = of_lengths(torch.tensor(lengths), 1.0)
    params = {"max_resp_len": 10, "overlong_buffer_len": 4, "penalty_factor": 0.5, "bounded": bounded}
    want = []
    for n in lengths:
        excess = max(n - 6, 0) / 4
        want.append(1 - 0.5 * (min(excess, 1) if bounded else excess))
    torch.testing.assert_close(shaped("overlong", params, batch), doubles(*want))
    mask = torch.tensor([[1, 0, 0, 0, 0, 1, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0], [0] * 8])  # a tool wrote four tokens in the first one
    held = paid(mask, doubles(0, 0, 0), "error", positions=torch.arange(8).expand(3, 8))
    few = {"max_resp_len": 6, "overlong_buffer_len": 2, "bounded": bounded}
    assert shaped("overlong", few, held).tolist() == [0, 0, 0]
    assert shaped("overlong", {**few, "length": "response"}, held).tolist() == [-1, 0, 0]
    with pytest.raises(ColumnError, match="also needs 'positions'"):
        shaped("overlong", {**few, "length": "response"}, batch)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("alphabet", [1, 2, 9])
def test_repetition_by_sets_of_tuples(size: int, alphabet: int) -> None:
    """With holes, empty and short sequences; ids far apart and negative."""
    g = torch.Generator().manual_seed(size * 10 + alphabet)
    mask = torch.rand(7, 30, generator=g) < torch.tensor([0.0, 0.1, 0.3, 0.9, 1.0, 1.0, 0.5])[:, None]
    ids = torch.randint(0, alphabet, (7, 30), generator=g) * 10**12 - 7
    batch = paid(mask, torch.zeros(7, dtype=torch.float64), "error", token_ids=ids)
    want = []
    for row in range(7):
        said = ids[row, mask[row]].tolist()
        runs = [tuple(said[k : k + size]) for k in range(len(said) - size + 1)]
        want.append(-2.0 * (1 - len(set(runs)) / len(runs)) if runs else 0.0)
    ours = shaped("repetition", {"ngram_size": size, "max_penalty": -2.0}, batch)
    torch.testing.assert_close(ours, doubles(*want), rtol=1e-12, atol=1e-12)


def test_stop_properly_shrinks_or_replaces() -> None:
    batch = single(doubles(2, 2, -2, -2), 1, truncated=doubles(1, 0, 1, 0))
    assert shaped("stop-properly", {"penalty_coef": 0.25}, batch).tolist() == [0.5, 2, -0.5, -2]
    assert shaped("stop-properly", {"penalty_coef": -3}, batch).tolist() == [-3, 2, -3, -2]


def test_rewards_are_clipped_scaled_and_mapped() -> None:
    batch = single(doubles(-30, -1, 0.25, 1, 30), 1)
    assert shaped("clip-rewards", {"reward_clip_range": [-1, 2]}, batch).tolist() == [-1, -1, 0.25, 1, 2]
    assert shaped("scale-rewards", {"reward_bias": 1, "reward_scaling": 2}, batch).tolist() == [-58, 0, 2.5, 4, 62]
    assert shaped("map-rewards", {"source": [-1, 1], "target": [0, 8]}, batch).tolist() == [0, 0, 5, 8, 8]
    for name, key in (("clip-rewards", "reward_clip_range"), ("map-rewards", "source")):
        with pytest.raises(ValidationError, match="must be below"):
            shaped(name, {key: [1, 1]}, batch)


def test_the_length_penalty_by_a_plain_loop() -> None:
    mask = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 1], [1, 1, 0, 0], [0, 0, 0, 0]])
    turns = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 2], [3, 3, 3, 3], [0, 0, 0, 0]])
    read, rewards, groups = [3, 8, 0, 1], [1.0, 0.5, 2.0, 3.0], [0, 0, 1, 1]
    more = {"turns": turns, "prompt_lengths": torch.tensor(read), "group_ids": groups}
    batch = paid(mask, doubles(*rewards), "error", **more)
    costs = [[4, 2, 2, 0], read, [2, 2, 1, 0]]
    weights = [0.5, 0.25, 0.125]
    want = []
    for i in range(4):
        peers = [j for j in range(4) if groups[j] == groups[i]]
        mean = sum(rewards[j] for j in peers) / len(peers)
        share = sum(w * c[i] / max(1, *(c[j] for j in peers)) for w, c in zip(weights, costs, strict=True))
        want.append(rewards[i] - mean * share)
    names = ("num_output_tokens_weight", "num_input_tokens_weight", "num_turns_weight")
    params = dict(zip(names, weights, strict=True))
    torch.testing.assert_close(shaped("length-penalty", params, batch), doubles(*want))
    with pytest.raises(ColumnError, match="num_turns_weight above 0 needs 'turns'"):
        shaped("length-penalty", {"num_input_tokens_weight": 0}, paid(mask, doubles(*rewards), "error", group_ids=groups))


@pytest.mark.parametrize("method", ["pow", "max_min", "max_random"])
def test_pf_ppo_has_the_mean_of_drawing_anew(method: str) -> None:
    scores = doubles(-2, 1, 0.5, 3)
    weight, _ = call("correction", "pf-ppo", {"reweight_method": method}, single(scores, 1))
    chance = {"pow": scores**2, "max_min": doubles(1, 0, 0, 1), "max_random": doubles(0.1, 0.1, 0.1, 0.4)}[method] + 1e-8
    draws = torch.multinomial(chance, 200_000, replacement=True, generator=torch.Generator().manual_seed(0)).bincount(minlength=4)
    torch.testing.assert_close(weight, draws.double() / 50_000, rtol=0.02, atol=0.01)
    assert weight.mean() == pytest.approx(1)


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_group_stays_if_its_rewards_differ_by_more_than_the_tolerance() -> None:
    rewards = doubles(1, 1.5, 0.1 + 0.2, 0.3, 2, 2, 2, 7)
    batch = paid(torch.ones(8, 1), rewards, "error", group_ids=[0, 0, 1, 1, 2, 2, 2, 3])
    both, none = [True, True], [False] * 5
    for by in ("range", "std"):
        for tolerance in (0, 1e-6, 0.35):
            params = {"by": by, "tolerance": tolerance}
            assert stay("group-spread", params, batch) == [*both, *none, True]  # rounding is no spread, and one alone is kept
            assert stay("group-spread", {**params, "singleton": "drop"}, batch) == [*both, *none, False]
    assert stay("group-spread", {"tolerance": 0.5}, batch)[:2] == [False, False]
    assert stay("group-spread", {"tolerance": 0.5 / math.sqrt(2) + 1e-9, "by": "std"}, batch)[:2] == [False, False]


@pytest.mark.parametrize("by", ["range", "std"])
def test_only_answers_with_a_token_say_whether_a_group_differs(by: str) -> None:
    mask = torch.tensor([[1], [1], [0], [1], [0], [0]])
    batch = paid(mask, doubles(1, 1, 9, 1, 2, 3), "error", group_ids=[0, 0, 0, 1, 1, 1])
    assert stay("group-spread", {"by": by}, batch) == [False] * 3 + [True] * 3
    assert stay("group-spread", {"by": by, "singleton": "drop"}, batch) == [False] * 6


def test_a_group_stays_if_its_mean_lies_strictly_between() -> None:
    batch = paid(torch.ones(6, 1), doubles(0, 1, 1, 1, 0, 0), "error", group_ids=[0, 0, 1, 1, 2, 2])
    assert stay("group-mean-bounds", {}, batch) == [True, True] + [False] * 4
    assert stay("group-mean-bounds", {"reward_range": [-1, 0.5]}, batch) == [False] * 4 + [True] * 2


def test_truncated_sequences_go_and_so_do_those_that_the_trainer_does_not_know() -> None:
    columns = {"truncated": doubles(0, 1, 0, 0), "old_log_prob": torch.zeros(4, 2, dtype=torch.float64)}
    rollout = torch.tensor([[0.0, -1], [NAN, -2], [NAN, NAN], [-900, 900]], dtype=torch.float64)
    batch = Batch.from_padded(torch.tensor([[1, 1], [1, 1], [1, 1], [0, 0]]), rollout_log_prob=rollout, **columns)
    assert stay("not-truncated", {}, batch) == [True, False, True, True]
    mean = (1 + math.e) / 2
    assert stay("seq-logprob-error", {"seq_logprob_error_threshold": mean + 1e-9}, batch) == [True, False, True, True]
    assert stay("seq-logprob-error", {"seq_logprob_error_threshold": mean - 1e-9}, batch) == [False, False, True, True]


# ── rewards that are missing ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["grpo-components", "gdpo"])
@pytest.mark.parametrize("over", ["sequences", "tokens"])
def test_a_sequence_without_a_reward_is_as_if_it_were_not_there(name: str, over: str) -> None:
    table = torch.tensor([[1.0, 2], [NAN, NAN], [3, 0], [0, 5], [2, 2], [NAN, NAN]], dtype=torch.float64)
    mask = torch.tensor([[1, 1], [1, 1], [1, 0], [1, 1], [1, 0], [1, 0]])
    groups = torch.tensor([0, 0, 0, 1, 1, 1])
    params = {"over": over} if name == "gdpo" else {"scale": "batch-std"}

    def run(rows: list[int]) -> Tensor:
        batch = paid(
            mask[rows], torch.zeros(len(rows), dtype=torch.float64), "error", group_ids=groups[rows], component_rewards=table[rows]
        )
        made = advantage(name, params, batch)
        return batch.unpack(made if made.shape == batch.sequences.index.shape else batch.sequences.spread(made))

    whole, rows = run(list(range(6))), [0, 2, 3, 4]
    assert (whole[[1, 5]] == 0).all()
    assert (whole[rows] != 0).any()
    torch.testing.assert_close(whole[rows], run(rows))


def test_a_component_that_does_not_apply_adds_nothing() -> None:
    table = torch.tensor([[1.0, NAN], [0, 1], [0, 0]], dtype=torch.float64)
    batch = single(doubles(0, 0, 0), 3, component_rewards=table)
    assert advantage("grpo-components", {"scale": "none", "weights": [1, 2]}, batch).tolist() == [0, 1, -1]
    half = math.sqrt(0.5)
    z = advantage("gdpo", {"over": "none", "epsilon": 0}, batch)
    torch.testing.assert_close(z, doubles(2 / math.sqrt(3), half - 1 / math.sqrt(3), -half - 1 / math.sqrt(3)))
    with pytest.raises(ColumnError, match="grpo-components has 1 weights"):
        advantage("grpo-components", {"weights": [1]}, batch)


# ── teachers and references ──────────────────────────────────────────────────────────────────────────────────────────


def test_opd_stands_alone_or_is_added() -> None:
    batch = Batch.from_packed([2], teacher_log_prob=doubles(-1, -3), old_log_prob=doubles(-2, -1), advantages=doubles(10, 10))
    assert advantage("opd", {"opd_kl_coef": 0.5}, batch).tolist() == [0.5, -1]
    assert advantage("opd", {"opd_kl_coef": 0.5, "add": True}, batch).tolist() == [10.5, 9]
    with pytest.raises(ColumnError, match="needs 'advantages'"):
        advantage("opd", {"add": True}, Batch.from_packed([1], teacher_log_prob=doubles(0), old_log_prob=doubles(0)))


def test_rlsd_keeps_signs_and_bounds() -> None:
    g = torch.Generator().manual_seed(0)
    a, teacher, old = (torch.randn(99, generator=g, dtype=torch.float64) * 9 for _ in range(3))
    ours = advantage("rlsd", {}, Batch.from_packed([99], advantages=a, teacher_log_prob=teacher * 99, old_log_prob=old))
    assert ((ours / a - 1).abs() <= 0.1 + 1e-12).all()
    assert ((ours.abs() > a.abs()) == (a * (teacher * 99 - old) > 0)).all()


def test_the_value_of_a2po_lies_between_mean_and_best() -> None:
    table = torch.tensor([[1.0, 2, 6], [1, 3, NAN], [NAN, NAN, NAN], [-1e5, 1e5, 0]], dtype=torch.float64)
    batch = single(doubles(0, 0, 0, 0), 1, frozen_rewards=table)
    torch.testing.assert_close(-advantage("a2po", {"beta1": 1e-3}, batch), doubles(6, 3, 0, 1e5), rtol=0, atol=2e-3)
    torch.testing.assert_close(-advantage("a2po", {"beta1": 1e9}, batch), doubles(3, 2, 0, 0), rtol=0, atol=10)
    value = math.log((math.e + math.e**2 + math.e**6) / 3)
    assert -advantage("a2po", {"beta1": 1.0}, batch)[0].item() == pytest.approx(value, rel=1e-12)


# ── what remembers ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_running_moments_are_those_of_all_that_was_seen(decay: float) -> None:
    """With weights that a plain loop gives each reward; steps of 5, 1, 0 and 4 rewards around a large mean."""
    c = COMPONENTS["advantage", "running-baseline"]
    params = c.params(decay=decay, epsilon=0).model_dump()
    g = torch.Generator().manual_seed(3)
    steps = [torch.randn(n, generator=g, dtype=torch.float64) + 1e4 for n in (5, 1, 0, 4)]
    assert c.init is not None
    state = c.init(**params)
    for k, x in enumerate(steps):
        ours, state = c.function(x, single(x, 1).sequences, state, **params)
        seen = torch.cat(steps[: k + 1])
        weight = torch.cat([torch.full_like(y, decay ** (k - j)) for j, y in enumerate(steps[: k + 1])])
        mean = (weight * seen).sum() / weight.sum()
        variance = (weight * (seen - mean) ** 2).sum() / (weight.sum() - 1)
        torch.testing.assert_close(ours, (x - mean) / variance.sqrt(), rtol=1e-8, atol=1e-8)


def test_running_whiten_meets_whiten_in_the_first_step_and_then_remembers() -> None:
    o = compose({"advantage": ["reinforce-plus-plus", "running-whiten"], "policy_loss": "reinforce"})

    def step(scale: float) -> float:
        batch = o.estimate(Batch.from_packed([1] * 8, rewards=doubles(*range(8)) * scale))
        o.commit()
        return float(batch["advantages"].std())

    def counts() -> list[float]:
        return [float(x["count"]) for x in o.state_dict()["states"].values()]

    assert step(1.0) == pytest.approx(1, abs=1e-6)
    assert counts() == [8]
    assert step(1.0) == pytest.approx(1, abs=0.05)
    assert counts() == pytest.approx([8 * 1.99])


def spo_loop(steps: list[tuple[list[int], list[float]]], rho: float, prior: float, count: float) -> list[list[float]]:
    """SPO by a dictionary; the advantages of each step before they are normalised."""
    table: dict[int, tuple[float, float]] = {}
    out = []
    for ids, rewards in steps:
        rate = {p: table.get(p, (prior * count, (1 - prior) * count)) for p in ids}
        out.append([r - rate[p][0] / sum(rate[p]) for p, r in zip(ids, rewards, strict=True)])
        for p in set(ids):
            won = [r for q, r in zip(ids, rewards, strict=True) if q == p]
            table[p] = rho * rate[p][0] + sum(won), rho * rate[p][1] + sum(1 - r for r in won)
    return out


@pytest.mark.parametrize("cut", [[6], [2, 4], [0, 1, 5]])
def test_spo_by_a_dictionary_wherever_the_answers_lie(cut: list[int]) -> None:
    steps = [([7, -3, 7, 2**62, 5, 0], [1.0, 0, 0.25, 1, 0, 1]), ([7, 8, 9, -3, -3, 10], [0.0, 1, 1, 0.5, 1, 0])] * 3
    recipe = {"advantage": {"use": "spo", "rho": 0.9, "prior": 0.25}, "policy_loss": "reinforce"}
    ends = list(accumulate(cut))

    def run(ranks: Any, k: int) -> list[Tensor]:
        o, found = compose(recipe, ranks=ranks), []
        for ids, rewards in steps:
            mine = slice(ends[k] - cut[k], ends[k])
            batch = Batch.from_packed([1] * cut[k], rewards=doubles(*rewards[mine]), group_ids=torch.tensor(ids[mine], dtype=torch.long))
            found.append(o.estimate(batch)["advantages"])
            o.commit()
        return found

    results = SimulatedRanks.run(len(cut), run)
    for k, x in enumerate(spo_loop(steps, 0.9, 0.25, 8.0)):
        want = doubles(*x)
        want = (want - want.mean()) / (want.std() + 1e-8)
        torch.testing.assert_close(torch.cat([r[k] for r in results]), want, rtol=1e-9, atol=1e-9)


def test_spo_forgets_the_prompts_longest_unseen() -> None:
    c = COMPONENTS["advantage", "spo"]
    params = c.params(capacity=2).model_dump()
    assert c.init is not None
    state = c.init(**params)
    for prompt in (1, 2, 1, 3):
        ids = torch.tensor([prompt])
        _, state = c.function(doubles(1), ids, single(doubles(1), 1).sequences, state, **params)
    assert state["ids"].tolist() == [1, 3]
    won = 0.96 * (0.96 * 4 + 1) + 1
    torch.testing.assert_close(state["won"], doubles(won, 0.96 * 4 + 1))
    torch.testing.assert_close(state["lost"], doubles(0.96 * 0.96 * 4, 0.96 * 4))
