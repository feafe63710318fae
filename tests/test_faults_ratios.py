"""Known faults of ratios, of where log-probabilities come from, and of precision: each by its number."""

import pytest
import torch

from lossary import Batch, PerToken, RecipeError, RecipeWarning, catalog, compose, policy_loss
from lossary.batch import left_shift_padded, token_log_probs
from lossary.registry import ColumnError
from lossary.trainer.data import assembled

NAN = float("nan")


@policy_loss(scope="token")
def given(log_prob: PerToken) -> PerToken:
    """The loss of a token is its log-probability."""
    return log_prob


def t(x, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype)


def leaf(x, dtype=torch.float64):
    return t(x, dtype).requires_grad_()


def stepped(loss, logp, old=None, advantages=None, *, mask=None, parts=1, aggregation="token-mean", **sections):
    """One step; returns its loss and its metrics, and leaves the gradient in ``logp``."""
    o = compose({"policy_loss": loss, "aggregation": aggregation, **sections}, components=[given])
    mask = torch.ones(logp.shape) if mask is None else mask
    columns = {k: v for k, v in {"old_log_prob": old, "advantages": advantages}.items() if v is not None}
    outs = []
    for micro in o.split(o.weigh(o.estimate(Batch.from_padded(mask, **columns))), parts=parts):
        outs.append(o.loss(micro, log_prob=logp[micro.rows]))
        outs[-1].total.backward()
    return sum(out.total.item() for out in outs), o.metrics(outs)


def close(got, expected, tol=1e-9):
    torch.testing.assert_close(got.double(), t(expected), rtol=0, atol=tol)


def test_ratio_o1_an_extreme_token_does_not_poison_its_neighbour():
    logp = leaf([[-2.5, -2.5]], torch.float32)
    loss, _ = stepped("ppo-clip", logp, t([[-2.4, -95.0]], torch.float32), t([[1.0, 1.0]], torch.float32))
    assert loss == pytest.approx(-1.05241870902, abs=1e-6)
    close(logp.grad, [[-0.452418709018, 0.0]], 1e-6)


def test_ratio_o2_an_extreme_token_that_is_worth_nothing():
    logp = leaf([[-1.0, -1.0]], torch.float32)
    loss, _ = stepped("ppo-clip", logp, t([[-1.0, -200.0]], torch.float32), t([[2.0, 0.0]], torch.float32))
    assert loss == pytest.approx(-1.0, abs=1e-6)
    close(logp.grad, [[-1.0, 0.0]], 1e-6)


def test_ratio_o3_dual_clip_bounds_bad_tokens_only():
    ratio, advantages = t([[0.5, 6.0, 1.5, 2.0]]), t([[2.0, -1.0, 1.0, -1.0]])
    loss, _ = stepped({"use": "dual-clip", "clip_ratio_c": 3.0}, ratio.log().requires_grad_(), torch.zeros_like(ratio), advantages)
    assert loss == pytest.approx(0.7, abs=1e-9)
    tokens, _ = catalog().get("policy_loss", "dual-clip").function(ratio[0].log(), torch.zeros(4), advantages[0])
    close(tokens, [-1.0, 3.0, -1.2, 2.0])


@pytest.mark.parametrize("c", ["0.9", "1.0"])
def test_ratio_o4_a_cap_of_at_most_one_is_refused(c, tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(f"policy_loss: {{use: dual-clip, clip_ratio_low: 0.2, clip_ratio_high: 0.2, clip_ratio_c: {c}}}\n")
    with pytest.raises(RecipeError, match=rf"r\.yaml:1:74: policy_loss\.clip_ratio_c: {c} is out of bounds; expected a number > 1"):
        compose(file)


def test_ratio_o5_the_upper_bound_is_its_own():
    logp = leaf([[0.0]])
    loss, metrics = stepped({"use": "ppo-clip", "clip_ratio_high": 0.28}, logp, -t([[1.5]]).log(), t([[1.0]]))
    assert loss == pytest.approx(-1.28, abs=1e-9)
    assert logp.grad.item() == 0
    assert metrics["actor/pg_clipfrac"] == 1.0


def test_ratio_o6_a_sequence_counts_once_whatever_its_length():
    log_ratio, mask = leaf([[0.1, 0, 0], [0.3, 0, 0.3]]), t([[1.0, 0, 0], [1, 1, 1]])
    batch = Batch.from_padded(mask)
    mean = batch.sequences.mean(batch.pack(log_ratio)).exp()
    close(mean.detach(), [1.10517091808, 1.22140275816])
    loss = {"use": "gspo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    with pytest.warns(RecipeWarning) as caught:
        got, _ = stepped(loss, log_ratio, torch.zeros(2, 3), t([1.0, -1.0]), mask=mask, aggregation="seq-mean-token-mean")
    assert got == pytest.approx(0.0581159200423, abs=1e-9)
    assert [str(w.message) for w in caught] == [
        f"policy_loss.clip_ratio_{side}: 0.2 does not suit 'gspo', which is made for clip_ratio_{side} <= 0.05." for side in ("low", "high")
    ]


def test_ratio_o7_a_capped_weight_keeps_the_sign_of_the_advantage():
    logp = leaf([[-1.0, -2.0]])
    use = {"use": "importance-sampling", "objective": "score", "imp_ratio_cap": 1.2}
    loss, _ = stepped(use, logp, t([[-1.3, -1.9]]), t([[1.0, -1.0]]))
    assert loss == pytest.approx(-0.304837418036, abs=1e-9)
    close(logp.grad, [[-0.6, 0.452418709018]])


def test_ratio_o8_token_mean_and_product_of_a_long_sequence():
    batch = Batch.from_packed([40], old_log_prob=torch.full((40,), -0.05, dtype=torch.float64))
    s, x = batch.sequences, batch["old_log_prob"]
    close(x.exp()[:1], [0.951229424501])
    close(s.mean(x).exp(), [0.951229424501])
    close(s.sum(x).exp(), [0.135335283237])


def test_ratio_o9_tokens_are_clipped_one_by_one():
    ratio = t([[1.2, 0.9, 1.6]])
    use = {"use": "ppo-clip", "clip_ratio_low": 0.25, "clip_ratio_high": 0.25}
    loss, _ = stepped(use, ratio.log().requires_grad_(), torch.zeros(1, 3), torch.ones(1, 3).double())
    assert loss == pytest.approx(-1.11666666667, abs=1e-9)


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
def test_ratio_o10_a_sequence_that_ran_away_leaves_the_others_exact():
    log_ratio, old = leaf([[120.0, 120.0], [0.1, -0.3]], torch.float32), torch.zeros(2, 2)
    use = {"use": "gspo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    loss, _ = stepped(use, log_ratio, old, t([-1.0, 1.0], torch.float32), aggregation="seq-mean-token-mean")
    assert loss == loss
    assert abs(loss) < float("inf")
    assert log_ratio.grad.isfinite().all()
    close(log_ratio.grad[1], [-0.226209354509, -0.226209354509], 1e-6)
    alone = leaf([[0.1, -0.3]], torch.float32)
    got, _ = stepped(use, alone, old[:1], t([1.0], torch.float32), aggregation="seq-mean-token-mean")
    assert got == pytest.approx(-0.904837418036, abs=1e-6)


# ── where log-probabilities come from ────────────────────────────────────────────────────────────────────────────────


def test_logp_o1_the_temperature_of_the_sampler():
    logits, token = t([[1.0, 0.0, -1.0]]), torch.tensor([0])
    close(token_log_probs(logits, token, temperature=0.5), [-0.1429316285])
    sampler = (logits / 0.5).log_softmax(-1)[:, 0]
    close((token_log_probs(logits, token, temperature=0.5) - sampler).exp(), [1.0])


def test_logp_o2_logits_of_other_positions_are_refused():
    with pytest.raises(ColumnError, match=r"shape of the logits \[1, 6, 5\] and of the token ids \[1, 4\]"):
        token_log_probs(torch.zeros(1, 6, 5), torch.zeros(1, 4, dtype=torch.long))


def test_logp_o3_a_token_that_the_sampler_did_not_score_can_be_dropped():
    """NaN is allowed in this one column and says: not scored. It reaches nothing, and it can be counted."""
    rollout, logp = t([[-1.1, NAN, -0.5]]), leaf([[-1.0, -2.0, -0.5]])
    batch = Batch.from_padded(
        torch.ones(1, 3), rollout_log_prob=rollout, old_log_prob=rollout.nan_to_num(), advantages=t([[1.0, 1.0, 1.0]])
    )
    scored = ~batch["rollout_log_prob"].isnan()
    assert (~scored).sum() == 1
    o = compose({"policy_loss": "importance-sampling"})
    out = o.loss(o.weigh(batch.select(scored)), log_prob=logp)
    out.total.backward()
    assert out.total.item() == pytest.approx(-1.05258545904, abs=1e-9)
    assert logp.grad[0, 1] == 0
    assert all(abs(v) < float("inf") for v in o.metrics(out).values())
    with pytest.raises(ColumnError, match="'old_log_prob' is nan at sequence 0, position 1"):
        Batch.from_padded(torch.ones(1, 3), old_log_prob=rollout)


def test_logp_o4_a_token_that_is_impossible_on_one_side_leaves_the_mean():
    logp, mask = leaf([[-0.7, -torch.inf]]), torch.ones(1, 2)
    o = compose({"policy_loss": "ppo-clip", "correction": {"use": "drop-impossible", "denominator": "kept", "decide": "measure"}})
    batch = o.estimate(Batch.from_padded(mask, old_log_prob=t([[-0.7, -3.0]]), advantages=t([[1.0, 1.0]])))
    measured = o.measure(batch, log_prob=logp.detach())
    out = o.loss(o.weigh(measured), log_prob=logp)
    out.total.backward()
    metrics = o.metrics(measured, out)
    assert out.total.item() == pytest.approx(-1.0, abs=1e-9)
    assert logp.grad.tolist() == [[-1.0, 0.0]]
    assert metrics["correction/drop_impossible_dropped"] == 0.5
    assert all(torch.tensor(x).isfinite() for x in metrics.values())


def test_logp_o5_logits_speak_of_the_next_token():
    logits = t([[[2.0, 0, 0], [0, 2.0, 0], [0, 0, 2.0], [1.0, 1, 1]]])
    close(token_log_probs(left_shift_padded(logits, 3), torch.tensor([[0, 1, 2]])), [[-0.239544766222] * 3])
    batch = Batch.from_padded(torch.ones(1, 3), token_ids=torch.tensor([[0, 1, 2]]))
    close(token_log_probs(batch.pack(logits, shift=True), batch["token_ids"]), [-0.239544766222] * 3)


def test_logp_o6_a_missing_log_prob_is_not_filled_in():
    with pytest.raises(ColumnError, match=r"'rollout_log_prob' has the shape \[1, 3\]; expected \[1, 4\]"):
        Batch.from_padded(torch.ones(1, 4), rollout_log_prob=t([[-0.3, -1.2, -0.8]]))


# ── precision ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_num_o1_log_probs_of_bf16_logits_are_taken_in_float32():
    logits = t([12.5, 3.25, -1.75, 0.5, 7.0, 7.0625, 2.125, -4.0], torch.bfloat16)
    expected = [
        -0.00853476663277, -9.25853476663, -14.2585347666, -12.0085347666, -5.50853476663, -5.44603476663, -10.3835347666, -16.5085347666,
    ]  # fmt: skip
    got = token_log_probs(logits.expand(8, 8), torch.arange(8))
    assert got.dtype == torch.float32
    close(got, expected, 1e-5)


def test_num_o2_on_policy_the_noise_of_a_recomputation_clips_nothing():
    logp = leaf([[-1.0, -2.0]])
    use = {"use": "ppo-clip", "clip_ratio_low": 3e-4, "clip_ratio_high": 3e-4}
    loss, metrics = stepped(use, logp, t([[-1.02, -1.98]]), t([[1.0, -1.0]]), old_log_prob="current")
    assert loss == pytest.approx(0.0, abs=1e-9)
    assert metrics["actor/pg_clipfrac"] == 0
    close(logp.grad, [[-0.5, 0.5]])


@pytest.mark.parametrize("parts", [1, 64])
def test_num_o3_many_small_bf16_numbers_add_up(parts):
    value = torch.full((4096, 1), 0.01, dtype=torch.bfloat16, requires_grad=True)
    loss, _ = stepped("given", value, aggregation="token-sum", parts=parts)
    assert loss == pytest.approx(41.0, rel=1e-3)


# ── the critic ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_value_o1_the_worse_of_two_errors_over_sampled_tokens():
    values, zeros = leaf([[1.0, 0.2, 5.0]]), torch.zeros(1, 3).double()
    o = compose({"value_loss": {"use": "clipped-mse", "cliprange_value": 0.5}})
    out = o.loss(o.weigh(Batch.from_padded(t([[1, 1, 0]]), old_values=zeros, returns=t([[2.0, 1.0, 0]]))), values=values)
    out.total.backward()
    assert out.total.item() == pytest.approx(0.7225, abs=1e-9)
    close(values.grad, [[0.0, -0.4, 0.0]])


def test_value_o2_the_critic_counts_no_padded_slot():
    inputs, mask, _ = assembled([[4, 5, 6], [4, 5, 6]], [[7, 8, 9], [7, 8]], pad_id=0)
    assert inputs.attention.int().tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]]
    assert mask.int().tolist() == inputs.attention[:, -inputs.width :].int().tolist() == [[1, 1, 1], [1, 1, 0]]
