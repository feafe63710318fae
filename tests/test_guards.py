"""What a stage refuses because it would otherwise be left out, done twice or half done without a word."""

import math

import pytest
import torch

import lossary
from lossary import Batch, ColumnError, LossaryError
from lossary.batch import SimulatedRanks

VETO = {"policy_loss": "reinforce", "correction": {"use": "veto", "denominator": "kept"}}


def mismatched():
    zero = torch.zeros(3)
    return Batch.from_packed(
        [2, 1], old_log_prob=zero, rollout_log_prob=torch.tensor([0.0, 0.0, 20.0]), advantages=zero + 1, truncated=[0, 1]
    )


@pytest.mark.parametrize(
    ("sections", "who"),
    [
        (VETO, "correction 'veto'"),
        ({"policy_loss": "reinforce", "correction": "truncated-is"}, "correction 'truncated-is'"),
        ({"policy_loss": "reinforce", "filter": "not-truncated"}, "filter 'not-truncated'"),
    ],
)
def test_what_acts_in_estimate_is_not_left_out(sections, who):
    objective = lossary.compose(sections)
    with pytest.raises(LossaryError, match=f"{who} acts in estimate: call objective.estimate"):
        objective.weigh(mismatched())
    estimated = objective.estimate(mismatched())
    touched = estimated.kept is not None or len(estimated) < 2 or (estimated["correction"] != 1).any()
    assert touched
    assert objective.weigh(estimated).totals is not None


def test_a_batch_does_not_bring_what_the_recipe_makes():
    batch = mismatched()
    brought = batch.with_columns(batch.levels["old_log_prob"], correction=torch.tensor([5.0, 7.0, 1.0]))
    with pytest.raises(ColumnError, match="brings the column 'correction', which correction 'veto' of this recipe is to make"):
        lossary.compose(VETO).estimate(brought)


@pytest.mark.parametrize("scale", [1.0, 1e6, 1e8, 1e-6])
def test_a_reward_that_is_mapped_is_as_exact_as_the_map(scale):
    """A difference to the old reward, added back in float32, would round the new one away."""
    objective = lossary.compose({"reward": {"use": "map-rewards", "source": [0, scale]}, "advantage": "remax", "policy_loss": "reinforce"})
    rewards = torch.tensor([0.1, 0.2, 0.6, 0.9]) * scale
    batch = objective.estimate(Batch.from_packed([1] * 4, rewards=rewards, baseline_rewards=torch.zeros(4)))
    torch.testing.assert_close(batch["advantages"], torch.tensor([0.1, 0.2, 0.6, 0.9]), rtol=1e-6, atol=0)


def test_a_clip_bounds_what_tokens_and_sequence_were_paid_together():
    objective = lossary.compose({"reward": "clip-rewards", "advantage": "remax", "policy_loss": "reinforce"})
    tokens = torch.tensor([1.0, 2.0])
    batch = Batch.from_packed([2], rewards=torch.tensor([1e9]), token_rewards=tokens, baseline_rewards=torch.zeros(1))
    assert objective.estimate(batch)["advantages"].tolist()[0] == 10.0


def test_a_rule_in_the_loss_needs_no_log_prob_of_its_own():
    objective = lossary.compose(
        {"auxiliary": {"use": "distill", "coef": 1.0}, "correction": {"use": "high-entropy", "denominator": "original"}}
    )
    batch = objective.weigh(objective.estimate(Batch.from_packed([2, 3, 1], advantages=torch.ones(6))))
    entropy, logits = torch.arange(6.0), torch.randn(6, 4, requires_grad=True)
    objective.loss(batch, logits=logits, teacher_logits=torch.randn(6, 4), entropy=entropy).total.backward()
    assert [bool(row.any()) for row in logits.grad] == [False, False, False, False, True, True]


def test_the_entropy_that_decides_is_that_of_all_ranks():
    entropy = torch.tensor([5.0, 6, 7, 8, 1, 2, 3, 4])
    correction = {"use": "high-entropy", "top_entropy_quantile": 0.5, "denominator": "kept", "decide": "measure"}
    plan = lossary.compose({"policy_loss": "reinforce", "correction": correction}).plan

    def kept(ranks, rows):
        objective = lossary.Objective(plan, ranks)
        batch = objective.estimate(Batch.from_packed([2] * len(rows), advantages=torch.ones(2 * len(rows))))
        return objective.measure(batch, entropy=entropy.view(4, 2)[rows].flatten()).kept.lengths

    assert kept(lossary.batch.ONE_RANK, [0, 1, 2, 3]) == (2, 2, 0, 0)
    assert sum(SimulatedRanks.run(2, lambda ranks, rank: kept(ranks, [[0, 1], [2, 3]][rank])), ()) == (2, 2, 0, 0)


def test_a_token_without_an_entropy_is_not_dropped_unseen():
    correction = {"use": "high-entropy", "denominator": "original"}
    objective = lossary.compose({"policy_loss": "reinforce", "correction": correction})
    batch = objective.weigh(objective.estimate(Batch.from_packed([3], advantages=torch.ones(3))))
    out = objective.loss(batch, log_prob=torch.zeros(3, requires_grad=True), entropy=torch.tensor([1.0, math.nan, 2.0]))
    assert objective.metrics(out)["correction/high_entropy_dropped"] < 1


def test_nothing_at_all_passes_through_a_chain():
    chain = ["pf-ppo", {"use": "m2po", "denominator": "kept"}, "batch-normalise"]
    objective = lossary.compose({"policy_loss": "ppo-clip", "correction": chain})
    none = torch.zeros(0)
    batch = objective.estimate(Batch.from_packed([], old_log_prob=none, rollout_log_prob=none, advantages=none, rewards=none))
    assert objective.loss(objective.weigh(batch), log_prob=none.clone().requires_grad_()).total == 0


def test_a_correction_keeps_its_promise():
    @lossary.correction(scope="token")
    def secret(old_log_prob) -> tuple[lossary.PerToken, None]:
        """Weigh, it says."""
        return None, old_log_prob < 0

    objective = lossary.compose({"policy_loss": "reinforce", "correction": "secret"}, components=[secret])
    with pytest.raises(ColumnError, match="'secret' returned a 'keep', but its signature promises that every token stays"):
        objective.estimate(mismatched())


@pytest.mark.parametrize("wrong", [[0.0] * 3, 3, "x"])
def test_what_a_model_gives_is_a_tensor(wrong):
    objective = lossary.compose({"policy_loss": "reinforce"})
    with pytest.raises(ColumnError, match=r"log_prob is (list|int|str); expected real numbers"):
        objective.loss(objective.weigh(mismatched()), log_prob=wrong)


def test_a_token_that_was_dropped_does_not_even_leave_its_nan():
    correction = {"use": "high-entropy", "top_entropy_quantile": 0.5, "denominator": "original"}
    objective = lossary.compose({"auxiliary": {"use": "distill", "coef": 1.0}, "correction": correction})
    batch = objective.weigh(objective.estimate(Batch.from_packed([4])))
    words = torch.randn(4, 5)
    words[0] = math.nan
    words.requires_grad_()
    objective.loss(batch, logits=words, teacher_logits=torch.randn(4, 5), entropy=torch.arange(4.0)).total.backward()
    assert words.grad.isfinite().all()
    assert (words.grad[2:] != 0).any()


def test_two_vocabularies_are_named():
    objective = lossary.compose({"auxiliary": {"use": "distill", "coef": 1.0}})
    batch = objective.weigh(Batch.from_packed([4]))
    with pytest.raises(ColumnError, match="'distill': logits has 5 words and teacher_logits 6; both must be over the same vocabulary"):
        objective.loss(batch, logits=torch.randn(4, 5, requires_grad=True), teacher_logits=torch.randn(4, 6))


def test_measure_asks_for_what_it_wants_by_its_own_name():
    correction = {"use": "high-entropy", "denominator": "kept", "decide": "measure"}
    objective = lossary.compose({"policy_loss": "reinforce", "correction": correction})
    with pytest.raises(ColumnError, match=r"needs 'entropy' from the model: measure\(batch, entropy=\.\.\.\)"):
        objective.measure(objective.estimate(mismatched()))


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"hidden": [0.0]}, "hidden is list; expected a tensor"),
        ({"weight": None}, "weight is NoneType; expected a tensor"),
        ({"weight": torch.zeros(3, 5)}, r"weight is torch.float32 \[3, 5\]; expected torch.float32 \[words, 4\]"),
        ({"weight": torch.zeros(5, 4, dtype=torch.float64)}, r"weight is torch.float64 \[5, 4\]; expected torch.float32"),
        ({"bias": torch.zeros(4)}, r"bias is torch.float32 \[4\]; expected torch.float32 \[5\], one number per word"),
        ({"scale": "1"}, "scale is '1'; expected a number"),
    ],
)
def test_a_head_that_does_not_fit_says_which_part(parts, said):
    with pytest.raises(ColumnError, match=f"Logits: {said}"):
        lossary.Logits(**{"hidden": torch.zeros(2, 4), "weight": torch.zeros(5, 4), **parts})
