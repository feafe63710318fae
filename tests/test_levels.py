"""Losses that are one number per sequence or per group, and those that need the whole step: custom components, as strangers write them."""

import pytest
import torch
from test_properties import _zeroed, assert_same, outputs, over_ranks, whole
from worlds import World

import lossary
from lossary import Mean, PerGroup, PerSequence, PerToken, Sequences, aggregation, policy_loss
from lossary.batch import SimulatedRanks


@policy_loss(scope="sequence")
def whole_answer(log_prob: PerToken, rewards: PerSequence, sequences: Sequences) -> tuple[PerSequence, dict]:
    """One loss per sequence."""
    total = sequences.sum(log_prob)
    return -rewards * total, {"answer": Mean(total)}


@policy_loss(scope="group")
def best_of_group(log_prob: PerToken, rewards: PerSequence, sequences: Sequences) -> PerGroup:
    """One loss per group: the spread of reward-weighted answers inside it."""
    score = sequences.sum(log_prob) * rewards
    return sequences.group_mean((score - sequences.group_spread(sequences.group_mean(score))) ** 2)


@policy_loss(scope="step")
def above_the_median(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Only the likelier half of the step's tokens."""
    return torch.where(log_prob.detach() >= log_prob.detach().median(), -advantages * log_prob, 0.0)


def composed(loss, agg="token-mean", **more):
    return lossary.compose({"policy_loss": loss.__name__, "aggregation": agg, **more}, components=[loss])


@pytest.mark.parametrize("agg", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "group-mean"])
@pytest.mark.parametrize("loss", [whole_answer, best_of_group])
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_splits_equal_the_whole(loss, agg, parts):
    world, objective = World(20), composed(loss, agg)
    want = whole(objective, world)
    leaves = world.leaves()
    micros = objective.split(objective.weigh(world.batch()), parts=parts)
    outs = [objective.loss(m, **outputs(world, leaves, m.rows)) for m in micros]
    for out in outs:
        out.total.backward()
    assert_same(
        want, _zeroed((sum(o.total.detach() for o in outs), {k: v.grad for k, v in leaves.items()}, objective.metrics(outs)), leaves)
    )
    if loss is best_of_group:
        assert all(len(m) % 3 == 0 or sum(m.lengths) == 0 for m in micros)  # groups of three stay together


def test_whole_groups_on_each_rank_equal_the_whole():
    objective, world = composed(best_of_group), World(21)
    assert_same(whole(objective, world), over_ranks(objective, world, [3, 6], max_tokens=15))


def test_a_group_on_two_ranks_is_refused_by_all_of_them():
    objective, world = composed(best_of_group), World(22)

    def work(ranks, rank):
        with pytest.raises(lossary.ColumnError, match=r"best-of-group.*more than one rank"):
            lossary.Objective(objective.plan, ranks).weigh(world.batch([[0, 1, 2, 3], [4, 5, 6, 7, 8]][rank]))
        return True

    assert SimulatedRanks.run(2, work) == [True, True]


def test_the_weight_of_a_sequence_is_that_of_its_tokens():
    world, objective = World(23), composed(whole_answer, "seq-mean-token-mean")
    batch = objective.weigh(world.batch())
    loss = -batch["rewards"] * batch.sequences.sum(batch.pack(world.log_prob))
    live = torch.tensor([n > 0 for n in batch.lengths])
    assert torch.isclose(objective.loss(batch, log_prob=world.log_prob).total, loss[live].mean())


def test_a_step_loss_is_not_cut_unless_the_recipe_accepts_it():
    world, objective = World(24), composed(above_the_median)
    batch = objective.weigh(world.batch())
    with pytest.raises(lossary.ColumnError, match="cannot be cut further"):
        objective.split(batch, max_tokens=5)
    assert len(objective.split(batch, max_tokens=1000)) == 1
    accepted = composed(above_the_median, approximate="micro-batch")
    assert len(accepted.split(accepted.weigh(world.batch()), max_tokens=8)) > 1
    with pytest.raises(lossary.LossaryError, match="above-the-median needs the whole step on one rank"):
        lossary.compose({"policy_loss": "above-the-median"}, components=[above_the_median], ranks=SimulatedRanks(0, [], None, 2))


def test_a_loss_that_reduces_is_told_so():
    @policy_loss
    def reduced(log_prob, advantages):
        """Wrong: takes the mean itself."""
        return -(log_prob * advantages).mean()

    world = World(25)
    objective = lossary.compose({"policy_loss": "reduced"}, components=[reduced])
    with pytest.raises(lossary.ColumnError, match=r"policy_loss 'reduced' returned the shape \[\]; .*never reduces"):
        objective.loss(objective.weigh(world.batch()), log_prob=world.log_prob)


@pytest.mark.parametrize("wrong", [lambda n: torch.ones(n + 1), lambda n: 1.0, lambda n: torch.ones(n, 2)])
def test_an_aggregation_of_the_wrong_shape_is_told_so(wrong):
    @aggregation
    def crooked(sequences: Sequences):
        """Wrong shape."""
        return wrong(sequences.index.shape[0])

    objective = lossary.compose({"policy_loss": "reinforce", "aggregation": "crooked"}, components=[crooked])
    with pytest.raises(lossary.ColumnError, match="aggregation 'crooked' returned"):
        objective.weigh(World(26).batch())


def test_a_loss_without_a_gradient_is_told_so():
    @policy_loss
    def severed(log_prob, advantages):
        """Wrong: trains nothing."""
        return -(log_prob.detach() * advantages)

    @policy_loss
    def whole_numbers(log_prob):
        """Wrong: no real numbers."""
        return (log_prob > -1).long()

    world = World(28)
    for loss, why in ((severed, "without a gradient"), (whole_numbers, "torch.int64; expected real numbers")):
        objective = lossary.compose({"policy_loss": loss.__name__.replace("_", "-")}, components=[loss])
        batch = objective.weigh(world.batch())
        with pytest.raises(lossary.ColumnError, match=why):
            objective.loss(batch, log_prob=world.log_prob.clone().requires_grad_())
    with torch.no_grad():
        objective = lossary.compose({"policy_loss": "severed"}, components=[severed])
        assert objective.loss(objective.weigh(world.batch()), log_prob=world.log_prob).total.isfinite()
