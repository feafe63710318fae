"""Corrections that read the current policy: inside ``loss``, or in a pass before the step."""

import math

import pytest
import torch
from rules import OWN, Both
from worlds import World

import lossary
from lossary import ColumnError, LossaryError, PerToken

MEASURED = [{"use": "falling", "decide": "measure", "denominator": "kept"}]


def composed(**sections):
    return lossary.compose({"policy_loss": "plain", **sections}, components=OWN)


def run(objective, batch, world):
    leaf = world.log_prob.clone().requires_grad_()
    micros = objective.split(objective.weigh(batch))
    outs = [objective.loss(m, log_prob=leaf[m.rows], entropy=world.entropy[m.rows]) for m in micros]
    for out in outs:
        out.total.backward()
    return sum(o.total.detach() for o in outs), {"log_prob": leaf.grad}, objective.metrics(outs)


def test_a_rule_inside_loss_never_lets_a_dropped_token_reach_the_gradient():
    """The token whose slope would be infinite is dropped by the rule: its gradient is 0, not NaN."""
    world = World(8)

    @lossary.policy_loss(scope="token")
    def steep(log_prob, old_log_prob, advantages) -> PerToken:
        """A root with an infinite slope at equality."""
        return (log_prob - old_log_prob).abs().sqrt() * advantages

    @lossary.correction
    def apart(log_prob, old_log_prob) -> Both:
        """Drop tokens that have not moved."""
        return None, log_prob != old_log_prob

    still = torch.rand(world.mask.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    world.columns["old_log_prob"] = torch.where(still, world.log_prob, world.columns["old_log_prob"])
    objective = lossary.compose(
        {"policy_loss": "steep", "correction": {"use": "apart", "denominator": "original"}}, components=[steep, apart]
    )
    _, grads, metrics = run(objective, objective.estimate(world.batch()), world)
    assert grads["log_prob"].isfinite().all()
    assert (grads["log_prob"][world.mask & still] == 0).all()
    assert (grads["log_prob"][world.mask & ~still] != 0).all()
    dropped = int((world.mask & still).sum()) / int(world.mask.sum())
    assert math.isclose(metrics["correction/apart_dropped"], dropped, rel_tol=1e-12)


def test_measured_and_decided_in_loss_agree_where_the_denominator_is_original():
    world = World(9)
    late = composed(correction={"use": "falling", "denominator": "original"})
    early = composed(correction={"use": "falling", "denominator": "original", "decide": "measure"})
    want = run(late, late.estimate(world.batch()), world)
    measured = early.measure(early.estimate(world.batch()), log_prob=world.log_prob)
    got = run(early, measured, world)
    assert torch.allclose(want[1]["log_prob"], got[1]["log_prob"], rtol=1e-12)
    assert math.isclose(early.metrics(measured)["correction/falling_dropped"], want[2]["correction/falling_dropped"], rel_tol=1e-12)


def test_weigh_insists_on_measure():
    objective = composed(correction=MEASURED)
    assert objective.measures
    assert objective.needs("measure") == {"log_prob": "correction 'falling'"}
    with pytest.raises(LossaryError, match=r"correction 'falling' decides in measure: call objective\.measure"):
        objective.weigh(objective.estimate(World(1).batch()))
    with pytest.raises(ColumnError, match="correction 'falling' needs 'log_prob'"):
        objective.measure(objective.estimate(World(1).batch()))


def test_an_old_policy_that_is_the_current_one_makes_a_rule_on_it_a_late_one():
    objective = composed(old_log_prob="current", correction=[{"use": "ratio-cut", "denominator": "original"}])
    assert [c.when for c in objective.plan.corrections] == ["loss"]
    world = World(10)
    world.columns.pop("old_log_prob")
    _, grads, _ = run(objective, objective.estimate(world.batch()), world)
    d = world.log_prob - world.columns["rollout_log_prob"]
    want = torch.where(world.mask & (d > 0), -d.exp() * world.columns["advantages"] / world.mask.sum(), 0.0)
    assert torch.allclose(grads["log_prob"], want, rtol=1e-12)


def test_each_rule_inside_loss_sees_the_weight_so_far():
    @lossary.correction
    def first(log_prob) -> tuple[PerToken, None]:
        """Weigh by 3."""
        return torch.full_like(log_prob, 3.0), None

    @lossary.correction
    def second(log_prob, correction: PerToken) -> tuple[PerToken, None]:
        """Square what was there."""
        return correction, None

    world = World(15)
    objective = lossary.compose({"policy_loss": "plain", "correction": ["first", "second"]}, components=[*OWN, first, second])
    _, grads, _ = run(objective, world.batch(), world)
    want = torch.where(world.mask, -9 * world.columns["advantages"] / world.mask.sum(), 0.0)
    assert torch.allclose(grads["log_prob"], want, rtol=1e-12)


def test_a_rule_over_the_step_keeps_the_step_whole():
    """It decides on a micro-batch, so that must be all there is: no split, and no ranks unless the recipe accepts their parts."""
    objective = lossary.compose({"policy_loss": "reinforce", "correction": {"use": "high-entropy", "denominator": "original"}})
    assert objective.scope == "step"
    with pytest.raises(ColumnError, match="does not fit"):
        objective.split(objective.weigh(World(16).batch()), max_tokens=9)
    with pytest.raises(LossaryError, match="high-entropy needs the whole step on one rank"):
        lossary.Objective(objective.plan, lossary.batch.SimulatedRanks(0, [], None, 2))


def test_nothing_is_weighed_or_dropped_twice():
    world = World(17)
    objective = composed(correction=[{"use": "ratio-cut", "denominator": "kept"}, "normalised"])
    once = objective.estimate(world.batch())
    twice = objective.estimate(once)
    assert torch.equal(once.kept["correction"], twice.kept["correction"])
    assert once.kept.lengths == twice.kept.lengths
    late = composed(correction=MEASURED)
    measured = late.measure(late.estimate(world.batch()), log_prob=world.log_prob)
    with pytest.raises(LossaryError, match="measured already"):
        late.measure(measured, log_prob=world.log_prob)
