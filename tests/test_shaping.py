"""Rewards and filters in the pipeline: what a step changes, in which order, and what leaves as if it had never been sampled."""

import math

import pytest
import torch
from worlds import World

import lossary
from lossary import ColumnError, Mean, PerSequence, PerToken, RecipeError, Sequences
from lossary.batch import SimulatedRanks


@lossary.reward_term
def doubled(rewards: PerSequence) -> PerSequence:
    """Pay twice."""
    return 2 * rewards


@lossary.reward_term
def shifted(rewards: PerSequence, *, by: float = 1.0) -> PerSequence:
    """Pay a constant."""
    return rewards + by


@lossary.reward_term
def each_token(token_rewards: PerToken, *, fee: float = 0.1) -> tuple[PerToken, dict]:
    """Take a fee per token."""
    return token_rewards - fee, {"fee": Mean(torch.full_like(token_rewards, fee))}


@lossary.advantage_estimator(scope="sequence")
def as_paid(token_rewards: PerToken, rewards: PerSequence, sequences: Sequences) -> dict[str, PerToken]:
    """Show both forms of the reward."""
    return {"advantages": token_rewards, "returns": sequences.spread(rewards)}


@lossary.sequence_filter
def positive(rewards: PerSequence) -> tuple[PerSequence, dict]:
    """Keep what was paid."""
    return rewards > 0, {"paid": Mean(rewards)}


@lossary.sequence_filter(scope="group")
def best_groups(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    """Keep groups with a positive mean."""
    return sequences.group_spread(sequences.group_mean(rewards)) > 0


@lossary.sequence_filter
def nobody(rewards: PerSequence) -> PerSequence:
    """Keep none."""
    return torch.zeros_like(rewards, dtype=torch.bool)


OWN = [doubled, shifted, each_token, as_paid, positive, best_groups, nobody]


def composed(**sections):
    return lossary.compose({"advantage": "as-paid", "policy_loss": "reinforce", **sections}, components=OWN)


def test_steps_run_in_order_and_both_forms_of_the_reward_follow():
    world = World(1)
    batch = composed(reward=["doubled", {"use": "shifted", "by": 3.0}]).estimate(world.batch())
    want = 2 * world.columns["rewards"] + 3
    sums = batch.sequences.sum(batch["advantages"])
    live = batch.sequences.lengths > 0
    assert torch.allclose(sums[live], want[live], rtol=1e-12)
    assert torch.allclose(batch["returns"], batch.sequences.spread(want), rtol=1e-12)
    assert (batch["advantages"][~batch.sequences.is_last] == 0).all()


def test_what_a_token_is_paid_stays_on_the_token():
    world, objective = World(2), composed(reward=[{"use": "each-token"}, "doubled"])
    tokens = torch.where(world.mask, 0.5, 0.0).double()
    batch = objective.estimate(world.batch(token_rewards=tokens))
    plain = 0.5 - 0.1 + torch.where(batch.sequences.is_last, batch.sequences.spread(world.columns["rewards"]), 0.0)
    total = batch.sequences.sum(plain)
    # The second step doubles the total; what it adds is paid on the last token.
    want = plain + torch.where(batch.sequences.is_last, batch.sequences.spread(total), 0.0)
    assert torch.allclose(batch["advantages"], want, rtol=1e-12)
    told = objective.metrics(batch)
    assert math.isclose(told["critic/reward_each_token"], -0.1, rel_tol=1e-9)
    assert math.isclose(told["critic/fee"], 0.1, rel_tol=1e-9)
    rows = world.columns["rewards"] + 0.4 * world.mask.double().sum(1)
    assert math.isclose(told["critic/reward_doubled"], float(rows.mean()), rel_tol=1e-9)


def test_the_kl_is_taken_after_the_shaping():
    world = World(3)
    objective = composed(reward="doubled", kl={"use": "k1", "coef": 0.5, "apply": "reward"})
    batch = objective.estimate(world.batch())
    kl = (world.columns["old_log_prob"] - world.columns["ref_log_prob"])[world.mask]
    want = torch.where(batch.sequences.is_last, batch.sequences.spread(2 * world.columns["rewards"]), 0.0) - 0.5 * kl
    assert torch.allclose(batch["advantages"], want, rtol=1e-12)


def test_the_batchs_own_rewards_are_not_touched():
    world, objective = World(4), composed(reward="doubled")
    batch = objective.estimate(world.batch())
    assert torch.equal(batch["rewards"], world.columns["rewards"])
    assert torch.equal(objective.estimate(batch)["advantages"], batch["advantages"])


# ── filters ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_filtered_counts_nowhere():
    """The same as if the rest alone had been sampled: in estimates, weights, losses and metrics."""
    world = World(5)
    objective = lossary.compose(
        {"filter": "positive", "advantage": ["grpo", "whiten"], "policy_loss": "ppo-clip", "aggregation": "seq-mean-token-mean"},
        components=OWN,
    )
    batch = objective.estimate(world.batch())
    left = [i for i, r in enumerate(world.columns["rewards"].tolist()) if r > 0]
    assert batch.rows.tolist() == left
    other = lossary.compose(
        {"advantage": ["grpo", "whiten"], "policy_loss": "ppo-clip", "aggregation": "seq-mean-token-mean"}, components=OWN
    )
    alone = other.estimate(world.batch(left))
    assert torch.equal(batch["advantages"], alone["advantages"])
    out, want = (o.loss(o.weigh(b), log_prob=world.log_prob[left]) for o, b in ((objective, batch), (other, alone)))
    assert torch.equal(out.total, want.total)
    told = objective.metrics(batch)
    assert math.isclose(told["filter/positive_kept"], len(left) / len(world.mask), rel_tol=1e-12)
    assert math.isclose(told["filter/paid"], float(world.columns["rewards"].mean()), rel_tol=1e-9)
    assert {" rewards", " token_rewards"}.isdisjoint(batch.columns)


def test_filters_see_shaped_rewards_and_run_one_after_the_other():
    world = World(6)
    objective = composed(reward={"use": "shifted", "by": -0.3}, filter=["positive", "best-groups"])
    batch = objective.estimate(world.batch())
    assert batch.rows.tolist() == [i for i, r in enumerate(world.columns["rewards"].tolist()) if r > 0.3]


@pytest.mark.parametrize("cut", [[9], [3, 6], [1, 4, 4]])
def test_filters_of_groups_and_rest_are_exact_over_ranks(cut):
    world = World(7)
    plan = lossary.compose({"filter": "best-groups", "advantage": ["grpo", "whiten"], "policy_loss": "reinforce"}, components=OWN).plan
    whole = lossary.Objective(plan).estimate(world.batch())
    ends = [sum(cut[: i + 1]) for i in range(len(cut))]
    rows = [list(range(e - c, e)) for c, e in zip(cut, ends, strict=True)]

    def work(ranks, rank):
        objective = lossary.Objective(plan, ranks)
        batch = objective.estimate(world.batch(rows[rank]))
        weighed = objective.weigh(batch)
        return batch, weighed.totals, objective.metrics(batch)

    found = SimulatedRanks.run(len(cut), work)
    assert 0 < len(whole) < len(world.mask)
    assert torch.allclose(torch.cat([f[0]["advantages"] for f in found]), whole["advantages"], rtol=1e-12)
    assert found[0][1].sequences == lossary.Objective(plan).weigh(whole).totals.sequences
    assert found[0][2].keys() == lossary.Objective(plan).metrics(whole).keys()


def test_a_rank_left_with_nothing_keeps_a_row_to_run_a_model_on():
    world = World(8)
    for advantage in ("grpo", "as-paid", ["rloo", "batch-normalise"]):
        objective = composed(filter="nobody", advantage=advantage)
        batch = objective.estimate(world.batch())
        assert (len(batch), batch.idle, batch.lengths) == (1, True, (0,))
        leaf = world.log_prob[batch.rows].clone().requires_grad_()
        (micro,) = objective.split(objective.weigh(batch))
        out = objective.loss(micro, log_prob=leaf)
        out.total.backward()
        assert out.total == 0
        assert (leaf.grad == 0).all()
        assert micro.totals.sequences == 0
        assert objective.metrics(batch)["filter/nobody_kept"] == 0


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"reward": "double"}, r"reward.use: No reward is called 'double'\. Did you mean 'doubled'"),
        ({"filter": {"use": "positive", "at": 1}}, "filter.at: unknown key"),
        ({"reward": "doubled", "advantage": None}, "advantage"),
    ],
)
def test_recipes_that_cannot_be_meant(sections, said):
    with pytest.raises(RecipeError, match=said):
        composed(**sections)


def test_a_reward_that_nobody_reads_is_a_fault():
    with pytest.raises(RecipeError, match="the reward is to be changed, but nothing in this recipe reads rewards"):
        lossary.compose({"reward": "doubled", "policy_loss": "reinforce"}, components=OWN)


def test_a_filter_that_gives_something_else():
    @lossary.sequence_filter
    def odd(rewards: PerSequence) -> PerSequence:
        return rewards

    objective = lossary.compose({"advantage": "grpo", "filter": "odd", "policy_loss": "reinforce"}, components=[odd])
    with pytest.raises(ColumnError, match=r"filter 'odd' returned torch.float64 \[9\]; expected one boolean per sequence"):
        objective.estimate(World(1).batch())


def test_all_that_is_asked_for_is_named_before_the_first_step():
    @lossary.sequence_filter
    def complete(truncated: PerSequence) -> PerSequence:
        return truncated == 0

    objective = lossary.compose({"advantage": "grpo", "filter": "complete", "policy_loss": "reinforce"}, components=[complete])
    assert objective.needs()["truncated"] == "filter 'complete'"
    world = World(1)
    del world.columns["truncated"]
    with pytest.raises(ColumnError, match="filter 'complete' needs the column 'truncated'"):
        objective.estimate(world.batch())
