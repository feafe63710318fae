"""The rules that no framework's numbers settle: known faults, the plainest loops, and sums over ranks."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lossary.aggregators import lossary_components as _aggregators
from lossary.aggregators.group_mean import group_mean
from lossary.aggregators.seq_mean_token_mean import seq_mean_token_mean
from lossary.aggregators.seq_mean_token_sum_norm import seq_mean_token_sum_norm
from lossary.algorithms import lossary_components as _algorithms
from lossary.algorithms.auxiliary.entropy import entropy
from lossary.algorithms.auxiliary.sft import sft
from lossary.algorithms.policy.dual_clip import dual_clip
from lossary.algorithms.policy.gspo import gspo
from lossary.algorithms.policy.gspo_token import gspo_token
from lossary.algorithms.policy.importance_sampling import importance_sampling
from lossary.algorithms.policy.ppo_clip import ppo_clip
from lossary.algorithms.value.clipped_mse import clipped_mse
from lossary.batch import Batch, Sequences
from lossary.batch.ranks import SimulatedRanks
from lossary.estimators import lossary_components as _estimators
from lossary.estimators.advantage.gae import gae
from lossary.estimators.advantage.grpo import grpo
from lossary.estimators.advantage.reinforce_plus_plus import reinforce_plus_plus
from lossary.estimators.advantage.rloo import rloo
from lossary.estimators.advantage.whiten import whiten
from lossary.estimators.coefficient.adaptive_kl import adaptive_kl
from lossary.estimators.coefficient.constant import constant
from lossary.estimators.coefficient.linear import linear
from lossary.estimators.kl.abs import absolute
from lossary.estimators.kl.k1 import k1
from lossary.estimators.kl.k2 import k2
from lossary.estimators.kl.k3 import k3
from lossary.registry import ColumnError, Component, Measured, Totals, component_of

ALL: tuple[Component, ...] = tuple(
    c for found in (_algorithms, _estimators, _aggregators) for c in map(component_of, found()) if c is not None
)


def t(*x: Any, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(x, dtype=dtype)


def groups(rewards: Tensor, ids: list[Any]) -> Sequences:
    """Return sequences of one token in these groups."""
    return Batch.from_padded(torch.ones(len(ids), 1), rewards=rewards, group_ids=ids).sequences


def totals(s: Sequences) -> Totals:
    lengths = s.lengths.double()
    count = (lengths > 0).sum().double()
    n = torch.zeros(()) if s.groups is None else (s.group_sum(lengths) > 0).sum()
    return Totals(lengths.sum(), count, n.double(), lengths.sum())


def grad(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), leaf)[0]


# ── policy losses ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_extreme_ratio_leaves_its_neighbours_alone_in_float32() -> None:
    new = t(-2.5, -2.5, dtype=torch.float32).requires_grad_()
    loss, _ = ppo_clip(new, t(-2.4, -95.0, dtype=torch.float32), torch.ones(2))
    assert_close(loss.mean(), torch.tensor(-1.05241870902), rtol=1e-6, atol=0)
    assert_close(grad(loss / 2, new), t(-0.452418709018, 0.0, dtype=torch.float32), rtol=1e-6, atol=0)


def test_no_advantage_is_no_loss_however_extreme_the_ratio() -> None:
    new = t(-1.0, -1.0, dtype=torch.float32).requires_grad_()
    for loss_of in (ppo_clip, dual_clip, importance_sampling):
        loss, _ = loss_of(new, t(-1.0, -200.0, dtype=torch.float32), t(2.0, 0.0, dtype=torch.float32))
        assert_close(loss.mean(), torch.tensor(-1.0))
        assert_close(grad(loss / 2, new), t(-1.0, 0.0, dtype=torch.float32))


def test_dual_clip_caps_what_a_bad_token_costs() -> None:
    ratio, advantages = t(0.5, 6.0, 1.5, 2.0), t(2.0, -1.0, 1.0, -1.0)
    loss, report = dual_clip(ratio.log(), torch.zeros(4), advantages)
    assert_close(loss, t(-1.0, 3.0, -1.2, 2.0))
    assert report["pg_clipfrac_lower"].x.tolist() == [False, True, False, False]


def test_the_sequence_level_is_the_mean_and_weighs_sequences_alike() -> None:
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]])
    log_ratio = t([0.1, 0.0, 0.0], [0.3, 0.0, 0.3])
    s = Batch.from_padded(mask).sequences
    loss, _ = gspo(log_ratio[mask > 0], torch.zeros(4), s.spread(t(1.0, -1.0)), s, clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert_close((seq_mean_token_mean(s, totals(s)) * loss).sum(), t(0.0581159200423)[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss_of", [gspo, gspo_token])
def test_a_runaway_sequence_leaves_the_others_alone_in_float32(loss_of: Any) -> None:
    new = t(120.0, 120.0, 0.1, -0.3, dtype=torch.float32).requires_grad_()
    s = Batch.from_padded(torch.ones(2, 2)).sequences
    advantages = s.spread(t(-1.0, 1.0, dtype=torch.float32))
    loss, _ = loss_of(new, torch.zeros(4), advantages, s, clip_ratio_low=0.2, clip_ratio_high=0.2)
    assert torch.isfinite(loss).all()
    assert_close(loss[2:], t(-0.904837418036, -0.904837418036, dtype=torch.float32), rtol=1e-6, atol=0)
    slope = grad(loss / 4, new)
    assert torch.isfinite(slope).all()
    assert_close(slope[2:], t(-0.226209354509, -0.226209354509, dtype=torch.float32), rtol=1e-6, atol=0)


def test_a_capped_weight_keeps_its_gradient_as_a_score_and_not_as_a_ratio() -> None:
    new, old, advantages = t(-1.0, -2.0).requires_grad_(), t(-1.3, -1.9), t(1.0, -1.0)
    loss, _ = importance_sampling(new, old, advantages, objective="score", imp_ratio_cap=1.2)
    assert_close(loss.mean(), t(-0.304837418036)[0], rtol=1e-9, atol=1e-12)
    assert_close(grad(loss / 2, new), t(-0.6, 0.452418709018), rtol=1e-9, atol=1e-12)
    loss, _ = importance_sampling(new, old, advantages, imp_ratio_cap=1.2)
    assert_close(loss.mean(), t((-1.2 + 0.904837418036) / 2)[0], rtol=1e-9, atol=1e-12)
    assert_close(grad(loss / 2, new), t(0.0, 0.452418709018), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("c", [c for c in ALL if "on-policy-gradient" in c.claims], ids=lambda c: c.name)
def test_on_policy_the_gradient_is_minus_the_advantage(c: Component) -> None:
    batch = Batch.from_padded(torch.tensor([[1, 1, 0], [1, 1, 1]]))
    new, advantages = t(-1.0, -2.0, -0.5, -3.0, -0.1).requires_grad_(), t(1.0, -2.0, 0.0, 0.5, -0.3)
    seen = {"log_prob": new, "old_log_prob": new.detach(), "advantages": advantages, "sequences": batch.sequences, "entropy": -new.detach()}
    seen |= {"rollout_log_prob": new.detach(), "ref_log_prob": new.detach(), "policy_version": torch.zeros(5), "step": torch.tensor(0.0)}
    out = c.function(*(seen.get(i.name) if i.optional else seen[i.name] for i in c.inputs))
    assert_close(grad(out[0] if isinstance(out, tuple) else out, new), -advantages)


def test_losses_of_the_tokens_themselves() -> None:
    assert_close(sft(t(-1.0, -2.5)), t(1.0, 2.5))
    assert_close(entropy(t(0.5, 2.0)), t(-0.5, -2.0))


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_value_loss_clips_where_that_is_worse() -> None:
    values = t(1.0, 0.2).requires_grad_()
    loss, _ = clipped_mse(values, t(0.0, 0.0), t(2.0, 1.0))
    assert_close(loss.mean(), t(0.7225)[0])
    assert_close(grad(loss / 2, values), t(0.0, -0.4))


def test_out_of_range_is_counted_apart_from_being_clipped() -> None:
    _, report = clipped_mse(t(1.1, 1.9, 0.6, 1.2), torch.ones(4), t(2.0, 0.0, 0.0, 0.0), cliprange_value=0.25)
    assert report["vf_out_of_range"].x.double().mean() == 0.5
    assert report["vf_clipfrac"].x.tolist() == [False, False, True, False]
    loss, report = clipped_mse(t(1.1, 1.9), torch.ones(2), torch.zeros(2), cliprange_value=None)
    assert_close(loss, t(0.605, 1.805))
    assert set(report) == {"vpred_mean"}


# ── KL ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_k2_and_what_borrows_from_it_has_the_gradient_of_the_kl() -> None:
    logits, reference = t(0.3, -0.1, 0.2).requires_grad_(), t(0.0, 0.4, -0.3).log_softmax(0)
    policy = logits.log_softmax(0)
    true = grad((policy.exp() * (policy - reference)).sum(), logits)
    found = {}
    for name, estimate, through in (("k1", k1, "own"), ("k2", k2, "own"), ("k3", k3, "own"), ("k1+", k1, "straight-through")):
        each = [grad(estimate(logits.log_softmax(0), reference, gradient=through)[a], logits) for a in range(3)]
        found[name] = sum(p * g for p, g in zip(policy.detach().exp(), each, strict=True))
    assert_close(found["k2"], true)
    assert_close(found["k1+"], true)
    assert_close(found["k1"], torch.zeros(3).double(), rtol=0, atol=1e-12)
    assert_close(found["k3"], t(0.0789813630621, -0.201185076695, 0.122203713633), rtol=1e-9, atol=1e-12)


def test_value_of_one_and_gradient_of_the_other() -> None:
    new = t(-1.0, -2.0).requires_grad_()
    value = k3(new, t(-1.8, -1.6), gradient="straight-through")
    assert_close(value, t(0.249328964117, 0.0918246976413), rtol=1e-9, atol=1e-12)
    assert_close(grad(value, new), t(0.8, -0.4))


@pytest.mark.parametrize("estimate", [k1, k2, k3, absolute])
def test_kl_stays_finite_in_float32_and_the_cap_ends_the_gradient(estimate: Any) -> None:
    new = t(-1.25, -200.0, -0.5, dtype=torch.float32).requires_grad_()
    reference = t(-0.5, 0.0, -0.5, dtype=torch.float32)
    for cap in (None, 10.0):
        value = estimate(new, reference, cap=cap)
        slope, value = grad(value, new), value.detach()
        assert torch.isfinite(value).all()
        assert torch.isfinite(slope).all()
        assert value[2] == 0
        if cap is not None:
            assert abs(float(value[1])) == cap
            assert slope[1] == 0


def test_k3_keeps_small_differences_in_float32() -> None:
    x = 1e-3
    value = k3(torch.zeros(1), torch.full((1,), x))
    assert_close(value.double(), t(x**2 / 2 + x**3 / 6), rtol=1e-3, atol=0)
    assert (k3(torch.linspace(-3, 3, 601), torch.zeros(601)) >= 0).all()


# ── coefficients ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_coefficients_are_numbers_of_the_step() -> None:
    assert constant(value=0.1).item() == 0.1
    path = [linear(torch.tensor(float(step)).double(), start=1.0, end=0.0, steps=4).item() for step in range(6)]
    assert path == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_the_controller_waits_for_a_first_measurement_and_takes_another_name() -> None:
    c = component_of(adaptive_kl)
    assert c is not None
    assert c.init is not None
    assert c.params.model_validate({"init": 0.2, "target": 1, "horizon": 10}).model_dump()["kl_coef"] == 0.2
    params = {"kl_coef": 0.2, "target": 1.0, "horizon": 10.0}
    zero = torch.zeros((), dtype=torch.float64)
    coef, state = adaptive_kl(c.init(**params), Measured(zero, zero, zero), **params)
    assert coef == 0.2
    assert state["coef"] is coef


# ── advantages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rewards_apart_by_rounding_are_tied() -> None:
    rewards = t(1000.0, 1000.00006, 1000.0, 1000.0, 3.0, 4.0, dtype=torch.float32)
    s = groups(rewards, [0, 0, 0, 0, 1, 1])
    for made in (grpo(rewards, s), grpo(rewards, s, scale="none"), rloo(rewards, s)):
        assert made[:4].tolist() == [0.0] * 4
        assert made[4] < 0 < made[5]
    same = torch.full((6,), 0.1, dtype=torch.float64)
    assert grpo(same, s, epsilon=0.0).tolist() == [0.0] * 6


def test_one_that_differs_from_all_the_others_stays_bounded() -> None:
    rewards = t(2.0, 2.0, 2.0, 5.0)
    s = groups(rewards, ["a"] * 4)
    assert rloo(rewards, s)[3] == 3.0
    assert grpo(rewards, s).abs().max() < 2


def test_alone_in_a_group() -> None:
    rewards = t(3.0, 0.0, 0.0, 2.0)
    s = groups(rewards, ["a", "a", "a", "b"])
    assert_close(rloo(rewards, s), t(3.0, -1.5, -1.5, 0.0))
    assert_close(rloo(rewards, s, singleton="reward"), t(3.0, -1.5, -1.5, 2.0))
    for scale in ("group-std", "batch-std", "none"):
        assert grpo(rewards, s, scale=scale)[3] == 0
    assert_close(grpo(rewards, s, singleton="reward", epsilon=0.0)[3], t(2.0)[0])


def test_groups_need_not_lie_together() -> None:
    rewards = t(1.0, 4.0, 3.0, 8.0)
    half = 0.5**0.5
    assert_close(grpo(rewards, groups(rewards, ["a", "b", "a", "b"]), epsilon=0.0), t(-half, -half, half, half))
    with pytest.raises(ColumnError, match="group_ids"):
        grpo(rewards, Batch.from_padded(torch.ones(4, 1)).sequences)


def test_whitening_by_the_plain_formula() -> None:
    s = Batch.from_padded(torch.tensor([[1, 1], [1, 0]])).sequences
    assert_close(whiten(t(1.0, 3.0, 5.0), s, unbiased=False, epsilon=0.0), t(-(1.5**0.5), 0.0, 1.5**0.5))
    assert_close(whiten(t(1.0, 3.0, 5.0), s, epsilon=0.0, shift_mean=False), t(2.0, 3.0, 4.0))
    one = Batch.from_padded(torch.tensor([[1, 0]])).sequences
    for epsilon in (1e-8, 0.0):
        assert whiten(t(4.0), one, epsilon=epsilon).tolist() == [0.0]


def test_whitening_is_settled_before_the_branches_are_chosen() -> None:
    s = Batch.from_padded(torch.ones(1, 2)).sequences
    white = whiten(t(-1.0, -5.0), s, unbiased=False, epsilon=0.0)
    loss, _ = ppo_clip(t(-0.9, -1.5), t(-1.0, -1.0), white)
    assert_close(loss.mean(), t(-0.152585459038)[0], rtol=1e-9, atol=1e-12)


def test_a_hole_costs_nothing_and_is_not_read() -> None:
    mask = torch.tensor([[1, 1, 0, 1]])
    batch = Batch.from_padded(mask, token_rewards=t([0.0, 0.1, 0.0, 1.0]), old_values=t([0.2, 0.4, 9.0, 0.5]))
    made = gae(batch["token_rewards"], batch["old_values"], batch.sequences, gamma=0.9, lam=0.8)
    assert_close(made["advantages"], t(0.5272, 0.51, 0.5))
    assert_close(made["returns"], t(0.7272, 0.91, 1.0))
    assert_close(reinforce_plus_plus(t(0.0, 0.0, 4.0), batch.sequences)["returns"], t(4.0, 4.0, 4.0))


def test_gae_says_which_column_a_bootstrap_needs() -> None:
    s = Batch.from_padded(torch.ones(1, 2)).sequences
    with pytest.raises(ColumnError, match=r"truncated.*bootstrap_values"):
        gae(t(0.0, 1.0), t(0.0, 0.0), s, bootstrap="truncated")
    with pytest.raises(ColumnError, match=r"needs 'bootstrap_values'"):
        gae(t(0.0, 1.0), t(0.0, 0.0), s, t(1.0), bootstrap="truncated")


def test_gae_by_the_plainest_loop() -> None:
    torch.manual_seed(0)
    mask = torch.rand(6, 70) < 0.7
    mask[3] = False
    rewards, values = torch.randn(6, 70).double(), torch.randn(6, 70).double()
    cut, after = (torch.rand(6) < 0.5).double(), torch.randn(6).double()
    batch = Batch.from_padded(mask, token_rewards=rewards, old_values=values, truncated=cut, bootstrap_values=after, masked_rewards="drop")
    given = [batch[n] for n in ("token_rewards", "old_values")], [batch[n] for n in ("truncated", "bootstrap_values")]
    made = gae(*given[0], batch.sequences, *given[1], gamma=0.9, lam=0.7, bootstrap="truncated")
    wanted = torch.zeros(6, 70).double()
    for i in range(6):
        following, trace = float(after[i]) if cut[i] else 0.0, 0.0
        for j in reversed(range(70)):
            if mask[i, j]:
                trace = float(rewards[i, j]) + 0.9 * following - float(values[i, j]) + 0.9 * 0.7 * trace
                following, wanted[i, j] = float(values[i, j]), trace
    assert_close(made["advantages"], wanted[mask], rtol=1e-10, atol=1e-12)
    assert_close(made["returns"], (wanted + values)[mask], rtol=1e-10, atol=1e-12)


# ── aggregations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def weighed(c: Component, x: list[list[float]], mask: list[list[int]], params: Mapping[str, Any], ids: list[int] | None = None) -> float:
    batch = Batch.from_padded(torch.tensor(mask), advantages=t(*x), group_ids=ids if ids is not None else list(range(len(x))))
    lengths = batch.sequences.lengths
    special = {"sequences": batch.sequences, "totals": totals(batch.sequences), "rollout_lengths": lengths}
    return float((c.function(*(special[i.name] for i in c.inputs), **params) * batch["advantages"]).sum())


def test_a_mean_is_what_it_says() -> None:
    found = {c.name: c for c in ALL if c.kind.name == "aggregation"}
    x, mask = [[2.0, 0, 0, 0], [1, 1, 1, 1]], [[1, 0, 0, 0], [1, 1, 1, 1]]
    norm = {"loss_scale_factor": 8}
    assert weighed(found["token-mean"], x, mask, {}) == pytest.approx(1.2)
    assert weighed(found["token-sum"], x, mask, {}) == pytest.approx(6)
    assert weighed(found["seq-mean-token-sum"], x, mask, {}) == pytest.approx(3)
    assert weighed(found["seq-mean-token-mean"], x, mask, {}) == pytest.approx(1.5)
    assert weighed(found["seq-mean-token-sum-norm"], x, mask, norm) == pytest.approx(0.375)
    wider = [row + [7.0] * 3 for row in x], [row + [0] * 3 for row in mask]
    assert weighed(found["seq-mean-token-sum-norm"], *wider, norm) == pytest.approx(0.375)
    x, mask = [[1.0, 3, 0], [2, 0, 0], [4, 4, 4], [0, 6, 0]], [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert weighed(found["group-mean"], x, mask, {}, [0, 0, 1, 1]) == pytest.approx(2.8)
    assert weighed(found["group-mean"], x, mask, {}, [5, 3, 5, 3]) == pytest.approx((16 / 5 + 8 / 3) / 2)
    for c in found.values():  # nothing sampled at all, and nothing in one of the rows or groups
        params = {"seq-mean-token-sum-norm": norm, "constant-divisor": {"divisor": 8}, "length-power": {"exponent": 0.5}}.get(c.name, {})
        assert weighed(c, [[1.0, 2.0], [3.0, 4.0]], [[0, 0], [0, 0]], params) == 0
        assert weighed(c, [[1.0, 2.0], [3.0, 5.0]], [[0, 0], [1, 1]], params) in (4.0, 8.0, 1.0, pytest.approx(8 / 2**0.5))


def test_the_fixed_length_must_be_said() -> None:
    c = component_of(seq_mean_token_sum_norm)
    assert c is not None
    assert c.params.model_fields["loss_scale_factor"].is_required()


# ── ranks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_statistics_reach_over_ranks() -> None:
    torch.manual_seed(1)
    rewards, ids = torch.randn(9).double(), [0, 1, 0, 2, 1, 1, 0, 3, 1]
    mask = torch.rand(9, 5) < 0.7
    mask[4] = False
    advantages = torch.randn(9, 5).double()
    shares = [[0, 3, 4], [1, 2, 5, 6, 7], [8]]

    def made(rows: list[int], ranks: SimulatedRanks | None) -> list[Tensor]:
        batch = Batch.from_padded(mask[rows], rewards=rewards[rows], advantages=advantages[rows], group_ids=[ids[r] for r in rows])
        s = batch.sequences if ranks is None else batch.sequences.across(ranks)
        whole = Totals(*(torch.tensor(float(n)).double() for n in (mask.sum(), 8, 4, mask.sum())))
        ours = [grpo(batch["rewards"], s, scale=scale) for scale in ("group-std", "batch-std")] + [rloo(batch["rewards"], s)]
        return [*ours, batch.unpack(whiten(batch["advantages"], s)), batch.unpack(group_mean(s, whole))]

    alone = made(list(range(9)), None)
    together = SimulatedRanks.run(3, lambda ranks, rank: made(shares[rank], ranks))
    for rank, rows in enumerate(shares):
        for mine, wanted in zip(together[rank], alone, strict=True):
            assert_close(mine, wanted[rows], rtol=1e-10, atol=1e-12)
