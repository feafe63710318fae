"""What an objective asks of a batch and of estimators, and what it says of those that do not bring it."""

from collections.abc import Mapping

import pytest
import torch

from lossary import Batch, ColumnError, LossaryError, PerSequence, PerToken, advantage_estimator, auxiliary_loss, compose


def test_a_batch_is_asked_for_everything_at_the_start():
    o = compose({
        "advantage": ["gae", "whiten"],
        "policy_loss": "ppo-clip",
        "kl": [{"use": "k1", "coef": 0.1, "apply": "reward"}, {"use": "k3", "coef": 0.1}],
        "value_loss": "clipped-mse",
        "entropy": 0.1,
        "aggregation": "group-mean",
    })  # fmt: skip
    assert set(o.needs()) == {"old_log_prob", "ref_log_prob", "old_values", "group_ids"}
    assert o.needs()["group_ids"] == "aggregation 'group-mean'"
    assert set(o.needs("weigh")) == {"old_log_prob", "ref_log_prob", "advantages", "returns", "old_values", "group_ids"}
    assert set(o.needs("loss")) == {"log_prob", "entropy", "values"}


def test_a_recipe_without_an_estimator_expects_advantages():
    o = compose({"policy_loss": "reinforce"})
    assert o.needs() == {"advantages": "policy_loss 'reinforce'"}
    with pytest.raises(ColumnError, match="policy_loss 'reinforce' needs the column 'advantages', which the batch does not bring"):
        o.estimate(Batch.from_packed([1], rewards=[1.0]))


def test_each_stage_says_which_one_was_left_out():
    o = compose({"policy_loss": "reinforce", "advantage": "rloo"})
    batch = Batch.from_packed([1, 1], rewards=[1.0, 2.0], group_ids=[0, 0])
    with pytest.raises(LossaryError, match=r"call objective\.weigh\(batch\) once per optimizer step"):
        o.loss(batch, log_prob=torch.zeros(2))
    with pytest.raises(ColumnError, match=r"Call objective\.estimate\(batch\) first"):
        o.weigh(batch)
    with pytest.raises(ColumnError, match=r"policy_loss 'reinforce' needs 'log_prob' from the model: loss\(micro, log_prob=\.\.\.\)"):
        o.loss(o.weigh(o.estimate(batch)))
    with pytest.raises(
        ColumnError, match=r"needs the column 'group_ids', which the batch does not bring\. Give every sequence the id of its prompt"
    ):
        o.estimate(Batch.from_packed([1, 1], rewards=[1.0, 2.0]))
    with pytest.raises(ColumnError, match="the batch brings no reward"):
        o.estimate(Batch.from_packed([1, 1], group_ids=[0, 0]))


@advantage_estimator
def unkept(rewards: PerSequence) -> Mapping[str, torch.Tensor]:
    """Promise columns and give one."""
    return rewards


@advantage_estimator
def per_answer(rewards: PerSequence) -> PerSequence:
    """One value per sequence."""
    return rewards


@auxiliary_loss
def answers_only(log_prob: PerToken, advantages: PerSequence) -> PerToken:
    """Ask for one advantage per sequence."""
    return log_prob


@pytest.mark.parametrize(
    ("advantage", "columns", "say"),
    [
        (unkept, {}, "advantage 'unkept' returned Tensor; its signature promises columns by name"),
        (lambda rewards: rewards[:1], {}, "returned the shape [1]; expected [3], one value per token"),
        (lambda rewards: 3.0, {}, "returned float; expected a tensor with one value per token"),
        ("gae", {"token_rewards": [1.0, 2.0]}, "'token_rewards' has one value per sequence; give those as 'rewards'"),
        ([per_answer, lambda returns: returns], {}, "needs the column 'returns', which the batch does not bring"),
        ([lambda rewards: rewards, lambda advantages: advantages], {}, "returned the shape [2]; expected [3], one value per token"),
    ],
)  # fmt: skip
def test_what_an_estimator_gives_is_checked(advantage, columns, say):
    o = compose({"policy_loss": "reinforce", "advantage": advantage})
    columns = {"rewards": [1.0, 2.0], "old_values": torch.zeros(3)} | columns
    with pytest.raises(ColumnError) as caught:
        o.estimate(Batch.from_packed([1, 2], **columns))
    assert say in str(caught.value)


def test_a_column_is_never_summed_to_a_coarser_level():
    o = compose({"policy_loss": "reinforce", "auxiliary": {"use": answers_only, "coef": 1}})
    batch = Batch.from_packed([1, 2], advantages=torch.zeros(3))
    with pytest.raises(
        ColumnError, match="auxiliary_loss 'answers-only': column 'advantages' has one value per token; one per sequence was asked for"
    ):
        o.loss(o.weigh(batch), log_prob=torch.zeros(3))


def test_a_batch_that_does_not_fit_is_not_cut():
    o = compose({"policy_loss": "reinforce"})
    batch = o.weigh(Batch.from_packed([5, 2, 2], advantages=torch.zeros(9)))
    with pytest.raises(ColumnError, match=r"a sequence has 5 tokens and does not fit into max_tokens=4"):
        o.split(batch, max_tokens=4)
    with pytest.raises(LossaryError, match="1 parts of at most 5 tokens do not hold the batch; it needs 2"):
        o.split(batch, max_tokens=5, parts=1)
    with pytest.raises(LossaryError, match="minibatches: n is 0; expected at least 1"):
        o.minibatches(batch, 0, seed=1)
    assert [len(m) for m in o.split(batch, max_tokens=5)] == [1, 2]
