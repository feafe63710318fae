"""Known faults of metrics, entropy and snapshots: each by its number."""

import pytest
import torch

from lossary import Batch, PerToken, compose, policy_loss
from lossary.registry import ColumnError


@policy_loss(scope="token")
def given(log_prob: PerToken) -> PerToken:
    """The loss of a token is its log-probability."""
    return log_prob


def t(x):
    return torch.tensor(x, dtype=torch.float64)


def leaf(x):
    return t(x).requires_grad_()


def clipping(clipped, tokens, rows=None):
    """A batch whose row ``i`` has ``tokens[i]`` tokens, of which ``clipped[i]`` have moved past the bound, and its log-probs."""
    width = torch.arange(max(tokens))
    moved, mask = (torch.where(width < torch.tensor(n)[:, None], 1.0, 0.0).double() for n in (clipped, tokens))
    zeros = torch.zeros_like(mask)
    return Batch.from_padded(mask, old_log_prob=zeros, advantages=zeros + 1), moved


@pytest.mark.parametrize("size", [4, 2, 1])
def test_metric_o1_a_token_mean_is_the_same_for_any_micro_batch(size):
    loss = t([[1.0], [2.0], [3.0], [6.0]])
    o = compose({"policy_loss": "given"}, components=[given])
    weighed = o.weigh(Batch.from_padded(torch.ones(4, 1)))
    outs = [o.loss(weighed.take(list(range(i, i + size))), log_prob=loss[i : i + size]) for i in range(0, 4, size)]
    assert o.metrics(outs)["actor/pg_loss"] == pytest.approx(3.0, abs=1e-9)


def test_metric_o2_a_fraction_is_clipped_over_counted():
    batch, logp = clipping([2, 3, 0], [10, 4, 0])
    o = compose({"policy_loss": "ppo-clip"})
    weighed = o.weigh(batch)
    outs = [o.loss(weighed.take([i]), log_prob=logp[[i]]) for i in range(3)]
    assert outs[2].reports.keys() == outs[0].reports.keys()
    assert o.metrics(outs)["actor/pg_clipfrac"] == pytest.approx(5 / 14, abs=1e-9)


def test_metric_o3_of_three_mini_batches_the_last_does_not_speak_for_all():
    batch, logp = clipping([1, 2, 6], [10, 10, 10])
    o, outs = compose({"policy_loss": "ppo-clip"}), []
    for i in range(3):
        outs.append(o.loss(o.weigh(batch.take([i])), log_prob=logp[[i]]))
        o.commit()
    assert o.metrics(outs)["actor/pg_clipfrac"] == pytest.approx(0.3)


def test_metric_o5_what_leaves_the_loss_still_has_its_length():
    mask, truncated = t([[1, 1, 0, 0], [1, 1, 1, 1]]), t([0, 1])
    logp = leaf([[-1.0, -2, 0, 0], [-1, -1, -1, -1]])
    o = compose({"policy_loss": "given", "correction": {"use": "drop-truncated", "denominator": "kept"}}, components=[given])
    batch = o.estimate(Batch.from_padded(mask, truncated=truncated))
    out = o.loss(o.weigh(batch), log_prob=logp)
    out.total.backward()
    assert out.total.item() == pytest.approx(-1.5)
    assert logp.grad[1].tolist() == [0, 0, 0, 0]
    assert batch.lengths == (2, 4)


def test_metric_o4_how_far_the_critic_moved_is_measured_against_its_old_self():
    ones, values = torch.ones(1, 4).double(), leaf([[1.1, 1.9, 0.6, 1.2]])
    o = compose({"value_loss": {"use": "clipped-mse", "cliprange_value": 0.25}})
    out = o.loss(o.weigh(Batch.from_padded(ones, old_values=ones, returns=ones)), values=values)
    assert o.metrics(out)["critic/vf_out_of_range"] == 0.5


def entropies(logits, policy_loss, coef):
    log_all = logits.log_softmax(-1)
    h = -(log_all.exp() * log_all).sum(-1)
    o = compose({"policy_loss": "given", "entropy": coef}, components=[given])
    out = o.loss(o.weigh(Batch.from_padded(torch.ones(1, 1))), log_prob=t([[policy_loss]]), entropy=h[None])
    out.total.backward()
    return h, out


def test_entropy_o1_the_bonus_is_subtracted_and_raises_the_entropy():
    logits = leaf([[0.5, -0.5, 0.0]])
    h, out = entropies(logits, 1.0, 0.01)
    assert h.item() == pytest.approx(1.02019133673, abs=1e-9)
    assert out.total.item() == pytest.approx(0.989798086633, abs=1e-9)
    torch.testing.assert_close(logits.grad, t([[0.00172163658367, -0.00122988252796, -0.000491754055713]]), rtol=0, atol=1e-9)
    after = (logits.detach() - logits.grad).log_softmax(-1)
    assert -(after.exp() * after).sum() > h.sum()


def test_entropy_o2_without_a_coefficient_it_is_neither_asked_for_nor_trained():
    """The other half of the case, a bound on memory, is the head's."""
    o = compose({"policy_loss": "given", "entropy": 0.0}, components=[given])
    assert "entropy" not in o.needs("loss")
    entropy = leaf([[1.0]])
    out = o.loss(o.weigh(Batch.from_padded(torch.ones(1, 1))), log_prob=t([[1.0]]), entropy=entropy.detach())
    assert not out.total.requires_grad
    assert o.metrics(out)["actor/entropy"] == 1.0


def test_entropy_o3_the_bonus_has_a_gradient_of_its_own():
    logits = leaf([[1.0, 0.0, 0.0]])
    _, out = entropies(logits, 0.0, 0.1)
    assert out.total.item() == pytest.approx(-0.0975327829166, abs=1e-9)
    torch.testing.assert_close(logits.grad, t([[0.0244206219854, -0.0122103109927, -0.0122103109927]]), rtol=0, atol=1e-9)


def ppo(logp, advantages, old=None, **sections):
    columns = {} if old is None else {"old_log_prob": old}
    o = compose({"policy_loss": "ppo-clip", **sections})
    out = o.loss(o.weigh(o.estimate(Batch.from_padded(torch.ones(logp.shape), advantages=advantages, **columns))), log_prob=logp)
    out.total.backward()
    return out.total.item(), o


def test_snapshot_o1_the_old_policy_may_be_the_current_one_if_the_recipe_says_so():
    logp = leaf([[-1.0, -2.0]])
    loss, o = ppo(logp, t([[1.0, -1.0]]), old_log_prob="current")
    assert loss == pytest.approx(0.0, abs=1e-9)
    torch.testing.assert_close(logp.grad, t([[-0.5, 0.5]]), rtol=0, atol=1e-9)
    assert "old_log_prob is the current policy's own: every ratio is 1, so nothing is ever clipped." in o.plan.notes


def test_snapshot_o1_an_absent_column_is_never_quietly_the_current_policy():
    with pytest.raises(ColumnError, match="policy_loss 'ppo-clip' needs the column 'old_log_prob', which the batch does not bring"):
        ppo(leaf([[-1.0, -2.0]]), t([[1.0, -1.0]]))


def test_snapshot_o2_the_ratio_is_against_what_was_given():
    logp = leaf([[-1.0, -2.0]])
    loss, _ = ppo(logp, t([[1.0, 1.0]]), old=t([[-1.5, -1.8]]))
    assert loss == pytest.approx(-1.00936537654, abs=1e-9)
    torch.testing.assert_close(logp.grad, t([[0.0, -0.409365376539]]), rtol=0, atol=1e-9)


def test_snapshot_o3_a_reference_is_needed_exactly_if_it_acts(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("policy_loss: reinforce\nkl: {use: k3, coef: 0.0}\n")
    assert "ref_log_prob" not in compose(file).needs()
    file.write_text("policy_loss: reinforce\nkl: {coef: 0.01, use: k3}\n")
    o = compose(file)
    assert o.needs()["ref_log_prob"] == "kl 'k3'"
    with pytest.raises(ColumnError, match="kl 'k3' needs the column 'ref_log_prob'"):
        o.estimate(Batch.from_padded(torch.ones(1, 1), advantages=t([[1.0]])))


def test_snapshot_o4_a_batch_keeps_what_it_was_given():
    weights = t([[-1.0]])  # what the model would give, changed in place by a step
    batch = Batch.from_padded(torch.ones(1, 1), ref_log_prob=weights, advantages=t([[0.0]]))
    weights.fill_(-0.6)
    o = compose({"policy_loss": "reinforce", "kl": {"use": "k3", "coef": 1.0}})
    assert o.loss(o.weigh(o.estimate(batch)), log_prob=weights).total.item() == pytest.approx(0.0703200460356, abs=1e-9)
