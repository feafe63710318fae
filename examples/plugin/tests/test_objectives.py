"""Each formula against a slow, obvious one, and against the component of lossary that it becomes when everything is trusted."""

import lossary
import pytest
import torch

from lossary_doubt import TRUST, doubt_clip, rollback, trusted_baseline, trusted_mean

OLD = torch.tensor([-1.0, -2.0, -0.5, -3.0, -1.0, -1.0], dtype=torch.float64)
MOVED = torch.tensor([0.5, -0.5, 0.1, 0.05, -0.1, 0.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -1.0, 2.0, -2.0, 1.0, -1.0], dtype=torch.float64)
PPO = lossary.catalog().get("policy_loss", "ppo-clip").function


def batch(trust=(1.0, 0.25, 0.5, 0.0), dtype=torch.float64):
    return lossary.Batch.from_packed(
        [3, 1, 2, 2],
        old_log_prob=torch.linspace(-2, -1, 8, dtype=dtype),
        rewards=torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=dtype),
        trust=torch.tensor(trust, dtype=dtype),
        group_ids=["a", "a", "b", "b"],
        fields=[TRUST],
    )


def test_doubt_clip_is_ppo_clip_with_narrower_bounds():
    trust = torch.tensor([1.0, 0.5, 0.25, 0.0, 1.0, 0.0], dtype=torch.float64)
    loss, report = doubt_clip(OLD + MOVED, OLD, ADVANTAGES, trust, power=2.0)
    for i in range(6):
        width = 0.2 * float(trust[i]) ** 2
        one, _ = PPO((OLD + MOVED)[i : i + 1], OLD[i : i + 1], ADVANTAGES[i : i + 1], clip_ratio_low=width, clip_ratio_high=width)
        torch.testing.assert_close(loss[i : i + 1], one)
    torch.testing.assert_close(report["clip_width"].x, trust**2)


@pytest.mark.parametrize("trust", [None, torch.ones(6, dtype=torch.float64), torch.full((6,), 7.0, dtype=torch.float64)])
def test_with_full_trust_it_is_ppo_clip(trust):
    torch.testing.assert_close(doubt_clip(OLD + MOVED, OLD, ADVANTAGES, trust)[0], PPO(OLD + MOVED, OLD, ADVANTAGES)[0])


def test_a_fresh_token_that_nobody_trusts_still_has_a_gradient():
    log_prob = OLD.clone().requires_grad_()
    loss, _ = doubt_clip(log_prob, OLD, ADVANTAGES, torch.zeros_like(OLD))
    (slope,) = torch.autograd.grad(loss.sum(), log_prob)
    torch.testing.assert_close(slope, -ADVANTAGES)


def test_rollback_turns_the_gradient_around_past_the_bound():
    log_prob = (OLD + MOVED).requires_grad_()
    loss, report = rollback(log_prob, OLD, ADVANTAGES, slope=0.3)
    (slope,) = torch.autograd.grad(loss.sum(), log_prob)
    for i, (moved, advantage) in enumerate(zip(MOVED.tolist(), ADVANTAGES.tolist(), strict=True)):
        ratio = torch.tensor(moved, dtype=torch.float64).exp()
        past = ratio > 1.2 if advantage >= 0 else ratio < 0.8
        torch.testing.assert_close(slope[i], -advantage * ratio * (-0.3 if past else 1))
    assert report["pg_clipfrac"].x.tolist() == [True, True, False, False, False, False]


def test_rollback_without_a_slope_is_ppo_clip():
    torch.testing.assert_close(rollback(OLD + MOVED, OLD, ADVANTAGES, slope=0.0)[0], PPO(OLD + MOVED, OLD, ADVANTAGES)[0])


def test_the_baseline_is_the_trusted_mean_of_the_group():
    made = trusted_baseline(batch()["rewards"], batch().sequences, batch()["trust"])
    first = (1.0 * 1.0 + 0.25 * 0.0) / 1.25
    second = (0.5 * 0.5 + 0.0 * 2.0) / 0.5
    expected = [1.0 * (1.0 - first), 0.25 * (0.0 - first), 0.5 * (0.5 - second), 0.0]
    torch.testing.assert_close(made, torch.tensor(expected, dtype=torch.float64))
    assert made[:2].sum().abs() < 1e-12
    assert made[2:].sum().abs() < 1e-12


@pytest.mark.parametrize("trust", [None, (1.0, 1.0, 1.0, 1.0)])
def test_with_full_trust_it_is_grpo_without_a_scale(trust):
    b = batch()
    grpo = lossary.catalog().get("advantage", "grpo").function
    given = None if trust is None else torch.tensor(trust, dtype=torch.float64)
    torch.testing.assert_close(trusted_baseline(b["rewards"], b.sequences, given), grpo(b["rewards"], b.sequences, scale="none"))


def test_a_group_that_nobody_trusts_teaches_nothing():
    made = trusted_baseline(batch()["rewards"], batch().sequences, torch.zeros(4, dtype=torch.float64))
    assert made.tolist() == [0.0] * 4


def test_the_weights_are_the_trust_and_add_up_to_one():
    objective = lossary.compose({"policy_loss": "ppo-clip", "advantage": "grpo", "aggregation": "trusted-mean"})
    b = objective.weigh(objective.estimate(batch()))
    (weights,) = b.weights.values()
    whole = 3 * 1.0 + 1 * 0.25 + 2 * 0.5
    torch.testing.assert_close(weights, torch.tensor([1.0] * 3 + [0.25] + [0.5] * 2 + [0.0] * 2, dtype=torch.float64) / whole)
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0, dtype=torch.float64))


def test_without_trust_it_is_token_mean_and_without_any_it_is_nothing():
    b = batch()
    objective = lossary.compose({"policy_loss": "ppo-clip", "advantage": "grpo"})
    totals = objective.weigh(objective.estimate(b)).totals
    torch.testing.assert_close(trusted_mean(b.sequences, totals), torch.full((8,), 1 / 8, dtype=torch.float64))
    assert trusted_mean(b.sequences, totals, torch.zeros(4, dtype=torch.float64)).tolist() == [0.0] * 8


@pytest.mark.parametrize("aggregation", ["token-mean", "trusted-mean"])
def test_any_split_gives_the_gradient_of_the_whole(aggregation):
    objective = lossary.compose("doubt", [f"aggregation={aggregation}"])
    whole = objective.weigh(objective.estimate(batch()))
    gradients = []
    for parts in ([whole], objective.split(whole, max_tokens=3)):
        log_prob = (whole["old_log_prob"] + 0.1).requires_grad_()
        for part in parts:
            place = torch.cat([torch.arange(8)[whole.sequences.index == row] for row in part.rows])
            objective.loss(part, log_prob=log_prob[place]).total.backward()
        gradients.append(log_prob.grad)
    assert len(objective.split(whole, max_tokens=3)) > 1
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-14)
    assert gradients[0].abs().sum() > 0
