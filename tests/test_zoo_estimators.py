"""The wider zoo where no framework has numbers: beside plain loops over tokens, subsets and draws."""

from itertools import combinations
from math import comb

import pytest
import torch
from golden.estimator_advantages import paid, to_go
from golden.estimator_zoo import advantage, single


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
