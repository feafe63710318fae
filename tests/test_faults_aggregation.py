"""Known faults of aggregation and of masks: the case's number in the name, its expected result, and the wrong one that must not come."""

import pytest
import torch

import lossary
from lossary import Batch, PerToken, RecipeError, auxiliary_loss, compose, kl_estimator, policy_loss
from lossary.batch import SimulatedRanks, left_shift_padded
from lossary.registry import ColumnError, LossaryError
from lossary.trainer.data import assembled

NAN = float("nan")


@policy_loss(scope="token")
def given(log_prob: PerToken) -> PerToken:
    """The loss of a token is its log-probability."""
    return log_prob


@policy_loss(scope="token")
def given_and_weighted(log_prob: PerToken, correction: PerToken) -> PerToken:
    """The same, with a weight for each token."""
    return correction * log_prob


@kl_estimator(scope="token")
def given_kl(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    """The KL of a token is the reference's column."""
    return ref_log_prob + 0 * log_prob


@auxiliary_loss(scope="step")
def balanced(log_prob: PerToken, entropy: PerToken) -> PerToken:
    """Two means, the second as large as the first: what one token weighs depends on the whole step."""
    return log_prob + (log_prob.mean() / entropy.mean()).detach() * entropy


def t(x):
    return torch.tensor(x, dtype=torch.float64)


def leaf(x):
    return t(x).requires_grad_()


def objective(aggregation, ranks=None, loss="given", **sections):
    recipe = {"policy_loss": loss, "aggregation": aggregation, **sections}
    return compose(recipe, components=[given, given_and_weighted, given_kl], ranks=ranks)


def stepped(o, batch, loss, micros=None, **columns):
    """One step: the loss of each micro-batch, backward called on each; ``micros`` are lists of rows."""
    weighed = o.weigh(o.estimate(batch))
    outs = []
    for micro in [weighed] if micros is None else [weighed.take(rows) for rows in micros]:
        out = o.loss(micro, log_prob=loss[micro.rows], **columns)
        out.total.backward()
        outs.append(out.total.item())
    return outs


CONSTANT_8 = {"use": "seq-mean-token-sum-norm", "loss_scale_factor": 8}


@pytest.mark.parametrize("micros", [[[0], [1]], [[0, 1]]])
def test_agg_o1_token_mean_does_not_depend_on_the_split(micros):
    loss, mask = leaf([[2.0, 0, 0, 0], [1.0, 1, 1, 1]]), t([[1.0, 0, 0, 0], [1, 1, 1, 1]])
    assert sum(stepped(objective("token-mean"), Batch.from_padded(mask), loss, micros)) == pytest.approx(1.2, abs=1e-9)
    torch.testing.assert_close(loss.grad, t([[0.2, 0, 0, 0], [0.2, 0.2, 0.2, 0.2]]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("width", [4, 7])
def test_agg_o2_a_constant_length_knows_no_width(width):
    loss, mask = torch.zeros(2, width).double(), torch.zeros(2, width)
    loss[:, :4], mask[:, :4] = t([[2.0, 0, 0, 0], [1.0, 1, 1, 1]]), t([[1.0, 0, 0, 0], [1, 1, 1, 1]])
    total = stepped(objective(CONSTANT_8), Batch.from_padded(mask), loss.requires_grad_())
    assert total == [pytest.approx(0.375, abs=1e-9)]


def test_agg_o2_the_constant_length_must_be_said():
    with pytest.raises(RecipeError, match="loss_scale_factor: required, but not given"):
        objective("seq-mean-token-sum-norm")


def test_agg_o3_each_window_is_the_mean_of_its_own_tokens():
    counts, sums = [3, 1, 2, 6], [3.0, 2.0, 1.0, 8.0]
    mask = torch.arange(6) < torch.tensor(counts)[:, None]
    loss = (t(sums) / t(counts))[:, None].expand(4, 6).clone().requires_grad_()
    o, batch = objective("token-mean"), Batch.from_padded(mask)
    windows = []
    for rows in ([0, 1], [2, 3]):
        outs = [o.loss(m, log_prob=loss[m.rows]).total for m in o.split(o.weigh(batch.take(rows)), parts=2)]
        assert len(outs) == 2
        windows.append(sum(outs).item())
    assert windows == pytest.approx([1.25, 1.125], abs=1e-9)


def test_agg_o4_a_host_that_divides_by_the_accumulation_steps_is_told_so():
    theta = leaf(1.0)
    o = objective("token-mean")
    weighed, losses = o.weigh(Batch.from_padded(torch.ones(8, 1))), []
    for micro in o.split(weighed, parts=4):
        loss = o.loss(micro, log_prob=(0.5 * theta).expand(len(micro), 1), host_divides_by=4).total / 4
        loss.backward()
        losses.append(loss.item())
    assert sum(losses) == pytest.approx(0.5, abs=1e-9)
    assert theta.grad.item() == pytest.approx(0.5, abs=1e-9)


def over_ranks(sums, counts, grad_average=None):
    """The loss that each rank calls backward on; a rank's sum is spread evenly over its tokens."""

    def work(ranks, rank):
        width = max(counts[rank], 1)
        loss = torch.full((1, width), sums[rank] / width, dtype=torch.float64, requires_grad=True)
        mask = (torch.arange(width) < counts[rank])[None]
        total = stepped(objective("token-mean", ranks), Batch.from_padded(mask), loss)[0]
        assert loss.grad.isfinite().all()
        return total

    return SimulatedRanks.run(len(sums), work, grad_average=grad_average)


def test_agg_o5_two_ranks_of_unequal_length_whose_gradients_are_averaged():
    assert over_ranks([6.0, 6.0], [6, 2]) == pytest.approx([1.5, 1.5], abs=1e-9)


def test_agg_o6_one_sequence_over_four_ranks_of_which_one_has_no_token():
    losses = over_ranks([1.0, 2.0, 3.0, 0.0], [1, 2, 1, 0], grad_average=4)
    assert sum(losses) / 4 == pytest.approx(1.5, abs=1e-9)
    assert losses[3] == 0


def test_agg_o7_a_mean_within_each_prompt_then_over_prompts():
    loss = leaf([[1.0, 3, 0], [2.0, 0, 0], [4.0, 4, 4], [0.0, 6, 0]])
    mask = t([[1.0, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0]])
    batch = Batch.from_padded(mask, group_ids=[0, 0, 1, 1])
    assert stepped(objective("group-mean"), batch, loss) == [pytest.approx(2.8, abs=1e-9)]
    torch.testing.assert_close(loss.grad, mask * t([1 / 6, 1 / 6, 1 / 10, 1 / 10])[:, None], rtol=0, atol=1e-9)


def test_agg_o8_what_needs_the_whole_step_is_not_split():
    a, b = leaf([[1.0], [5.0]]), leaf([[1.0], [1.0]])
    o = compose({"auxiliary": {"use": balanced, "coef": 1.0}})
    assert o.scope == "step"
    micros = o.split(o.weigh(Batch.from_padded(torch.ones(2, 1))), parts=2)
    totals = [o.loss(m, log_prob=a[m.rows], entropy=b[m.rows]).total for m in micros]
    sum(totals).backward()
    assert sum(totals).item() == pytest.approx(6.0, abs=1e-9)
    torch.testing.assert_close(b.grad, t([[1.5], [1.5]]), rtol=0, atol=1e-9)


@pytest.mark.parametrize("micros", [[[0, 1], [2]], [[0], [1], [2]], None])
def test_agg_o9_sequence_means_over_unequal_micro_batches(micros):
    loss, mask = leaf([[1.0, 1], [2.0, 2], [6.0, 0]]), t([[1, 1], [1, 1], [1, 0]])
    assert sum(stepped(objective("seq-mean-token-mean"), Batch.from_padded(mask), loss, micros)) == pytest.approx(3.0, abs=1e-9)


def test_agg_o10_four_ranks_and_a_global_denominator():
    losses = over_ranks([4.0, 1.0, 1.0, 2.0], [2, 2, 3, 1])
    assert sum(losses) / 4 == pytest.approx(1.0, abs=1e-9)


def test_agg_o10_ranks_that_do_not_say_how_gradients_are_averaged_are_refused():
    class Silent:
        def sum(self, x):
            return x

    with pytest.raises(LossaryError, match="grad_average"):
        objective("token-mean", ranks=Silent())


def test_agg_o11_kl_and_policy_share_a_mask_over_garbage():
    pg, mask = leaf([[1.0, -1.0, 0.0]]), t([[1, 1, 0]])
    batch = Batch.from_padded(mask, ref_log_prob=t([[0.2, 0.6, 9.0]]))
    o = objective("token-mean", kl={"use": "given-kl", "coef": 0.5})
    assert stepped(o, batch, pg) == [pytest.approx(0.2, abs=1e-9)]


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


MODES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "token-sum", CONSTANT_8, "group-mean")


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_mask_o1_a_batch_without_any_token(mode):
    loss = leaf([[1.0, 2], [3.0, 4]])
    o = objective(mode, entropy=0.1)
    weighed = o.weigh(o.estimate(Batch.from_padded(torch.zeros(2, 2), group_ids=[0, 0])))
    out = o.loss(weighed, log_prob=loss, entropy=loss * 2)
    out.total.backward()
    assert out.total.item() == 0
    assert loss.grad.tolist() == [[0, 0], [0, 0]]
    assert all(v == v and abs(v) != float("inf") for v in o.metrics(out).values())


@pytest.mark.parametrize(("mode", "expected"), [("token-mean", 3.0), ("seq-mean-token-mean", 3.75), ("seq-mean-token-sum", 4.5)])
def test_mask_o2_nan_under_the_mask_reaches_nothing(mode, expected):
    loss, mask = leaf([[1.0, 2, NAN], [6.0, NAN, NAN]]), t([[1, 1, 0], [1, 0, 0]])
    assert stepped(objective(mode), Batch.from_padded(mask), loss) == [pytest.approx(expected, abs=1e-9)]
    assert loss.grad[mask == 0].tolist() == [0, 0, 0]
    assert loss.grad.isfinite().all()


def test_mask_o2_nan_at_a_sampled_token_is_not_hidden():
    loss, mask = leaf([[1.0, NAN, 2], [6.0, NAN, NAN]]), t([[1, 1, 0], [1, 0, 0]])
    assert stepped(objective("token-mean"), Batch.from_padded(mask), loss)[0] != pytest.approx(3.0, nan_ok=False)
    with pytest.raises(ColumnError, match="'old_log_prob' is nan at sequence 0, position 1"):
        Batch.from_padded(mask, old_log_prob=loss)


@pytest.mark.parametrize(("empty", "expected"), [("drop", 2.0), ("count", 1.0)])
def test_mask_o3_an_empty_row_counts_only_if_the_recipe_says_so(empty, expected):
    loss, mask = leaf([[2.0, 2], [5.0, 5]]), t([[1, 1], [0, 0]])
    o = objective("seq-mean-token-mean", empty=empty)
    assert stepped(o, Batch.from_padded(mask), loss) == [pytest.approx(expected, abs=1e-9)]
    assert loss.grad[1].tolist() == [0, 0]


def test_mask_o4_rejected_tokens_leave_the_denominator():
    loss = leaf([[1.0, 1, 1, 1]])
    batch = Batch.from_padded(torch.ones(1, 4), correction=t([[2.0, 9.0, 0.01, 0.5]]))
    kept = batch.select(torch.tensor([True, False, False, True]))
    assert stepped(objective("token-mean", loss="given-and-weighted"), kept, loss) == [pytest.approx(1.25, abs=1e-9)]
    assert loss.grad.tolist() == [[1.0, 0, 0, 0.25]]


def test_mask_o5_only_what_the_policy_wrote_is_trained():
    logp = leaf([[-1.0, -1, -1, -1]])
    mask = torch.tensor([[source == "policy" for source in ("policy", "env", "env", "policy")]])
    batch = Batch.from_padded(mask, old_log_prob=t([[-1.0, -1, -1, -1]]), advantages=t([[1.0, 1, 1, 1]]))
    assert stepped(objective("token-mean", loss="ppo-clip"), batch, logp) == [pytest.approx(-1.0, abs=1e-9)]
    torch.testing.assert_close(logp.grad, t([[-0.5, 0, 0, -0.5]]), rtol=0, atol=1e-9)


BUILT_IN = [(c.kind.name, c.name) for c in lossary.catalog() if c.kind.name in ("policy_loss", "auxiliary_loss", "kl")]


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
@pytest.mark.parametrize(("kind", "name"), BUILT_IN, ids=[n for _, n in BUILT_IN])
def test_mask_o6_what_stands_under_the_mask_changes_nothing_at_all(kind, name):
    section = {"policy_loss": {"policy_loss": name}, "auxiliary_loss": {"auxiliary": {"use": name, "coef": 1}}}
    recipe = section.get(kind, {"policy_loss": "given", "kl": {"use": name, "coef": 1}})
    found = []
    for x in (-1.0, -9.0, NAN):
        logp, old = leaf([[-1.0, -0.5], [-0.8, x]]), t([[-1.1, -0.5], [-0.7, x]])
        columns = dict.fromkeys(("old_log_prob", "ref_log_prob", "rollout_log_prob", "teacher_log_prob"), old)
        columns |= {
            "rewards": t([1.0, 0]),
            "log_z": t([0.1, 0.2]),
            "group_ids": torch.tensor([0, 0]),
            "turns": torch.tensor([[0, 1], [0, 1]]),
            "policy_version": torch.tensor([[0, 1], [0, 1]]),
            "demonstration": t([[1, 0], [1, 0]]),
            "teacher_topk_log_prob": t([[[-0.5, -1.5], [-0.4, -2.0]], [[-0.3, -3.0], [x, x]]]),
            "teacher_topk_ids": torch.tensor([[[0, 1], [1, 2]], [[2, 0], [0, 0]]]),
        }
        logits, frozen = (
            leaf([[[0.1, 0.2, -1], [0.3, 0, 0]], [[1, 0.5, 0], [x, x, x]]]),
            t([[[0.3, 0, 1], [0, 1, 2]], [[0, 0, 1], [x, 0, x]]]),
        )
        batch = Batch.from_padded(t([[1, 1], [1, 0]]), **columns, advantages=t([1.0, -1.0]))
        o = compose(recipe, components=[given])
        out = o.loss(o.weigh(o.estimate(batch)), log_prob=logp, entropy=-logp, logits=logits, ref_logits=frozen, teacher_logits=frozen)
        out.total.backward()
        grads = [x.grad[1, 1].abs().sum().item() for x in (logp, logits) if x.grad is not None]
        found.append((out.total.item(), [x.grad.tolist() for x in (logp, logits) if x.grad is not None], o.metrics(out)))
        assert set(grads) == {0}
    assert found[0] == found[1] == found[2]


def test_mask_o7_an_end_of_sequence_that_looks_like_padding_is_kept():
    _, mask, ids = assembled([[4], [4]], [[5, 6, 2], [7, 2]], pad_id=2)
    assert mask.int().tolist() == [[1, 1, 1], [1, 1, 0]]
    assert ids.tolist() == [[5, 6, 2], [7, 2, 2]]


def test_mask_o8_nan_of_the_old_policy_under_the_mask():
    logp = leaf([[-0.4, -1.0, -0.9]])
    batch = Batch.from_padded(t([[1, 0, 1]]), old_log_prob=t([[-0.5, NAN, -0.9]]), advantages=t([[1.0, 1.0, -2.0]]))
    assert stepped(objective("token-mean", loss="ppo-clip"), batch, logp) == [pytest.approx(0.447414540962, abs=1e-9)]
    torch.testing.assert_close(logp.grad, t([[-0.552585459038, 0, 1.0]]), rtol=0, atol=1e-9)


def test_mask_o9_the_advantage_of_a_sequence_ignores_padding():
    logp = leaf([[-1.0, -1, 0, 0]])
    batch = Batch.from_padded(t([[1, 1, 0, 0]]), old_log_prob=logp.detach(), advantages=t([[2.0, 2, 50, -7]]))
    assert batch.sequences.mean(batch["advantages"]).tolist() == [2.0]
    assert stepped(objective("seq-mean-token-mean", loss="gspo"), batch, logp) == [pytest.approx(-2.0, abs=1e-9)]


def test_mask_o10_a_token_without_context_is_not_scored_and_not_counted():
    batch = Batch.from_padded(torch.tensor([[0, 1, 1]]), old_log_prob=t([[0.0, -1.0, -3.0]]))
    assert batch.sequences.mean(batch["old_log_prob"]).tolist() == [-2.0]
    with pytest.raises(ColumnError, match="too few to speak of 3 response tokens"):
        left_shift_padded(torch.zeros(1, 3, 5), 3)
