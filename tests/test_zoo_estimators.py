"""The wider zoo where no framework has numbers: beside plain loops over tokens, subsets and draws."""

from itertools import combinations
from math import comb
from typing import Any

import pytest
import torch
from golden.estimator_advantages import paid, to_go
from golden.estimator_zoo import advantage, single
from golden.records import COMPONENTS, call
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only
from worlds import World

from lossary.batch import Batch
from lossary.registry import ColumnError, Component

ESTIMATORS = [c for (kind, _), c in COMPONENTS.items() if kind in ("advantage", "reward", "filter", "correction")]
REQUIRED = {"overlong": {"max_resp_len": 6, "overlong_buffer_len": 3}, "seq-logprob-error": {"seq_logprob_error_threshold": 2.0}}


def binomial(n: int, k: int) -> int:
    return comb(n, k) if 0 <= k <= n else 0


@pytest.mark.parametrize("k", [2, 3, 5])
def test_pkpo_is_the_sum_over_all_subsets(k: int) -> None:
    """Real rewards, ties, groups of 7, 4 and 1, not side by side, some smaller than k."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.3, 0.3, 5.5, 2.0, 1.0, 9.0, 1e3, 1e3 + 1, 1e3, 1e3 - 2], dtype=torch.float64)
    groups = torch.tensor([7, 7, 7, 2, 7, 7, 7, 7, 9, 2, 2, 2, 7])
    batch = paid(torch.ones(13, 1), rewards, "error", group_ids=groups)
    want = torch.zeros(13, dtype=torch.float64)
    for i in range(13):
        others = [j for j in range(13) if groups[j] == groups[i] and j != i]
        for chosen in combinations(others, k - 1):
            best = max(float(rewards[j]) for j in chosen)
            want[i] += (max(best, float(rewards[i])) - best) / binomial(len(others) + 1, k)
    torch.testing.assert_close(advantage("pkpo", {"k": k}, batch), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_passk_is_the_mean_over_all_draws(right: int, k: int) -> None:
    """Each draw of k is a "group answer" that earns 1 if one of it is right; its advantage is shared by its members."""
    n, rewards = 6, torch.tensor([float(j < right) for j in range(6)], dtype=torch.float64)
    draws = [(c, float(any(rewards[j] > 0 for j in c))) for c in combinations(range(n), k)]
    mean = sum(x for _, x in draws) / len(draws)
    deviation = (mean * (1 - mean)) ** 0.5
    want = []
    for i in range(n):
        mine = [x for c, x in draws if i in c]
        want.append((sum(mine) / len(mine) - mean) / (deviation + 1e-6))
    ours = advantage("passk-analytic", {"k": k}, single(rewards, n))
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_passk_with_too_few_answers_is_zero() -> None:
    ours = advantage("passk-analytic", {"k": 3}, single(torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), 2))
    assert (ours == 0).all()


@pytest.mark.parametrize("name", ["grpo-passk", "pkpo", "maxrl", "opo", "gpg", "grpo-leave-one-out", "passk-analytic"])
def test_ties_and_singletons_are_exactly_zero(name: str) -> None:
    """A tied group is one whose rewards differ by rounding, and dividing that by itself would be noise of size 1."""
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 7.0], dtype=torch.float64)
    batch = paid(torch.ones(4, 1), rewards, "error", group_ids=[0, 0, 0, 1])
    assert (advantage(name, {"threshold": 0.0} if name == "passk-analytic" else {}, batch) == 0).all()


@pytest.mark.parametrize("tail", [True, False])
def test_the_optimal_token_baseline_by_a_plain_loop(tail: bool) -> None:
    """On a batch with holes, where a column holds tokens of some rows only."""
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 8, generator=g) < 0.6
    rewards, old, q = (torch.rand(6, 8, generator=g, dtype=torch.float64) for _ in range(3))
    ids = [0, 1, 0, 1, 0, 0]
    positions = torch.arange(8).expand(6, 8)
    batch = paid(mask, rewards * mask, "error", group_ids=ids, old_log_prob=-old, sum_pi_squared=q, positions=positions)
    ours = advantage("optimal-token-baseline", {"handle_zero_tail": tail}, batch)["advantages"]
    to_come = to_go(rewards, mask.double())
    energy = ((1 - 2 * (-old).exp() + q) * mask).cumsum(1)
    want = []
    for i in range(6):
        for t in range(8):
            members = [j for j in range(6) if ids[j] == ids[i] and mask[j, t]]
            top, bottom = sum(to_come[j, t] * energy[j, t] for j in members), sum(energy[j, t] for j in members)
            base = 0.0 if tail and len(members) == 1 else top / (bottom + 1e-8) if mask[i, t] else 0.0
            want += [float(to_come[i, t] - base)] if mask[i, t] else []
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bootstrap", ["never", "truncated"])
def test_gae_by_the_turn_by_a_plain_loop(bootstrap: str) -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(5, 9, generator=g) < 0.7
    rewards, values = (torch.randn(5, 9, generator=g, dtype=torch.float64) for _ in range(2))
    after, cut = torch.randn(5, generator=g, dtype=torch.float64), torch.tensor([1.0, 0, 1, 0, 0])
    turns = torch.arange(9).expand(5, 9) // 4
    more = {"truncated": cut, "bootstrap_values": after}
    batch = paid(mask, rewards * mask, "error", old_values=values, turns=turns, **more)
    ours = advantage("gae-turn", {"gamma": 0.9, "lam": 0.8, "bootstrap": bootstrap}, batch)["advantages"]
    want: list[float] = []
    for row in range(5):
        rest, value_next, turn_next, found = 0.0, float(after[row] * cut[row]) if bootstrap == "truncated" else 0.0, -1, []
        for t in [int(x) for x in mask[row].nonzero().flatten()][::-1]:
            same = int(turns[row, t]) == turn_next
            gamma, lam = (1.0, 1.0) if same else (0.9, 0.8)
            rest = float(rewards[row, t]) + gamma * value_next - float(values[row, t]) + gamma * lam * rest
            value_next, turn_next = float(values[row, t]), int(turns[row, t])
            found.append(rest)
        want += found[::-1]
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def arguments(component: Component, batch: Batch) -> tuple[list[Any], dict[str, Any]]:
    """Return what stands before ``*`` and after it, as the pipeline gives them in the first step."""
    params = component.params(**REQUIRED.get(component.name, {})).model_dump()
    state = component.init(**params) if component.init is not None else None
    special = {"sequences": batch.sequences, "state": state, "correction": torch.ones_like(batch["log_prob"])}
    columns = [
        special[i.name] if i.name in special else batch.column(i.name, i.level) if i.name in batch else None for i in component.inputs
    ]
    return columns, params


def tensors(component: Component, made: Any) -> list[torch.Tensor]:
    """Return the results without reports and states."""
    if component.kind.name == "correction":
        return [x for x in (made[0] if isinstance(made[0], tuple) else made) if x is not None]
    result = made[0] if isinstance(made, tuple) else made
    return list(result.values()) if isinstance(result, dict) else [result]


def paying(world: World) -> Batch:
    return world.batch(trained=True, token_rewards=world.columns["returns"] * world.mask, prompt_lengths=torch.arange(len(world.mask)))


@pytest.mark.parametrize("component", ESTIMATORS, ids=lambda c: c.name)
def test_an_estimator_runs_where_there_is_no_data_to_look_at(component: Component) -> None:
    """Fake tensors have shapes but no values, so no shape and no branch depends on one."""
    world = World(3)
    given, params = arguments(component, paying(world))
    mode = FakeTensorMode()

    def fake(tree: Any) -> Any:
        return tree_map_only(torch.Tensor, mode.from_tensor, tree)

    with mode:
        sizes = {x.shape[0] for x in tensors(component, component.function(*fake(given), **params))}
    assert sizes <= {int(world.mask.sum()), len(world.mask)}


@pytest.mark.parametrize("component", ESTIMATORS, ids=lambda c: c.name)
def test_an_estimator_of_nothing_gives_nothing(component: Component) -> None:
    """Rows without a single sampled token: no NaN, no error."""
    world = World(4)
    world.mask[:] = False
    given, params = arguments(component, paying(world))
    assert all(x.isfinite().all() for x in tensors(component, component.function(*given, **params)))


@pytest.mark.parametrize("delta", [0.5, 10.0])
def test_huber_by_its_two_branches(delta: float) -> None:
    values = torch.linspace(-30, 30, 61, dtype=torch.float64, requires_grad=True)
    zero = torch.zeros(61, dtype=torch.float64)
    batch = Batch.from_packed([61], values=values, old_values=zero, returns=zero)
    loss, _ = call("value_loss", "huber", {"delta": delta, "cliprange_value": None}, batch)
    loss.sum().backward()
    want = [0.5 * v * v if abs(v) <= delta else delta * (abs(v) - delta / 2) for v in values.tolist()]
    torch.testing.assert_close(loss.detach(), torch.tensor(want, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(values.grad, values.detach().clamp(-delta, delta), rtol=1e-12, atol=1e-12)


def test_dft_and_positive_nll_by_hand() -> None:
    log_prob = torch.tensor([[-1.0, -2.0], [-3.0, -0.5]], dtype=torch.float64, requires_grad=True)
    batch = Batch.from_padded(torch.ones(2, 2), log_prob=log_prob, rewards=torch.tensor([1.0, 0.0], dtype=torch.float64))
    loss = call("auxiliary_loss", "dft", {}, batch)
    loss.sum().backward()
    p = log_prob.detach().exp()
    torch.testing.assert_close(loss.detach(), (-p * log_prob.detach()).flatten())
    torch.testing.assert_close(log_prob.grad, -p)
    loss, report = call("auxiliary_loss", "positive-nll", {}, batch)
    assert loss.tolist() == [1.0, 2.0, 0.0, 0.0]
    assert report["positive_nll"].where.tolist() == [True, True, False, False]


def test_clipped_advantages_are_clipped() -> None:
    batch = Batch.from_packed([3], advantages=torch.tensor([-9.0, 0.5, 9.0]))
    assert advantage("clip-advantages", {"advantage_clip": 2.0}, batch).tolist() == [-2.0, 0.5, 2.0]


def test_mt_grpo_compares_a_turn_with_those_who_had_it() -> None:
    """The second sequence has no second turn, so the 100 that pads its table counts for nobody."""
    mask, turns = torch.tensor([[1, 1], [1, 0], [1, 1]]), torch.tensor([[0, 1]] * 3)
    table = torch.tensor([[1.0, 4.0], [2.0, 100.0], [3.0, 6.0]], dtype=torch.float64)
    zero = torch.zeros(3, dtype=torch.float64)
    batch = paid(mask, zero, "error", group_ids=[0, 0, 0], turn_rewards=table, turns=turns)
    assert advantage("mt-grpo", {"scale": "none"}, batch).tolist() == [-1.0, -1.0, 0.0, 1.0, 1.0]


def test_gdpo_needs_a_weight_for_each_component() -> None:
    batch = single(torch.zeros(2, dtype=torch.float64), 2, component_rewards=torch.zeros(2, 3, dtype=torch.float64))
    with pytest.raises(ColumnError, match="gdpo has 2 weights, but 'component_rewards' has 3 components"):
        advantage("gdpo", {"weights": [1.0, 2.0]}, batch)
