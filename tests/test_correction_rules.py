"""Each correction for itself, compositions of them, and the distance that they are to mend."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from correcting import pair, world
from golden.records import COMPONENTS, call, corrected
from torch import Tensor

from lossary import compose
from lossary.batch import Batch
from lossary.registry import ColumnError, Level, RecipeError

LN2 = math.log(2)


def tokens(log_ratio: Sequence[float], *, old: float = -3.0, **more: Any) -> Batch:
    """One sequence with these log-ratios of trainer to sampler."""
    moved = torch.tensor([list(log_ratio)], dtype=torch.float64)
    trainer = torch.full_like(moved, old)
    return Batch.from_padded(torch.ones(1, len(log_ratio)), old_log_prob=trainer, rollout_log_prob=trainer - moved, **more)


def test_metric_o6_raw_and_effective_weight_are_different_measures() -> None:
    (_, keep), report = call("correction", "truncated-is", {"cap": 2.0}, tokens([-0.5, 2.5, -0.2]))
    assert keep is None
    means = {name: float(m.x.double().mean()) for name, m in report.items()}
    assert means["rollout_is_raw"] == pytest.approx(4.53591845783, abs=1e-9)
    assert means["rollout_is"] == pytest.approx(1.14175380426, abs=1e-9)
    assert means["rollout_is_clipfrac"] == pytest.approx(1 / 3, abs=1e-9)


def test_bounds_are_inclusive_and_strict_ones_are_not() -> None:
    batch = tokens([LN2, -LN2, 0.0], old=0.0)
    bounds = {"lower": 0.5, "upper": 2.0}
    assert pair(call("correction", "icepop", bounds, batch))[1].tolist() == [True, True, True]
    assert pair(call("correction", "icepop", {**bounds, "strict": True}, batch))[1].tolist() == [False, False, True]
    for name in ("masked-is", "outlier"):
        assert pair(call("correction", name, bounds, batch))[1].all()
    assert pair(call("correction", "reject-k1", {**bounds, "agg": "token"}, batch))[1].all()
    assert pair(call("correction", "veto", {"threshold": 0.5}, batch))[1].all()


def test_bounds_of_k1_are_ratios_of_trainer_to_sampler() -> None:
    """verl's are those of the inverse: its 0.5_1.2 keeps ratios between 1/1.2 and 2."""
    batch = tokens([math.log(1.9), math.log(0.6)])
    assert pair(call("correction", "reject-k1", {"agg": "token", "lower": 1 / 1.2, "upper": 1 / 0.5}, batch))[1].tolist() == [True, False]
    assert pair(call("correction", "reject-k1", {"agg": "token", "lower": 0.5, "upper": 1.2}, batch))[1].tolist() == [False, True]


@pytest.mark.parametrize("name", ["masked-is", "reject-k1", "reject-probability", "icepop", "outlier"])
def test_bounds_that_cross_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"lower bound .* above the upper"):
        call("correction", name, {"lower": 0.9, "upper": 0.1}, tokens([0.0]))


def test_a_floor_above_the_cap_is_refused() -> None:
    with pytest.raises(ValueError, match="floor 3 above its cap 2"):
        call("correction", "truncated-is", {"floor": 3.0, "cap": 2.0}, tokens([0.0]))


@pytest.mark.parametrize(("name", "params"), [("truncated-is", {"level": "segment"}), ("reject-k2", {"agg": "segment"})])
def test_segments_need_turns(name: str, params: dict[str, Any]) -> None:
    with pytest.raises(ColumnError, match="'turns'"):
        call("correction", name, params, tokens([0.1, 0.2]))


@pytest.mark.parametrize("behaviour", ["old", "rollout"])
def test_off_policy_sequences_need_the_policy_that_behaved(behaviour: str) -> None:
    batch = Batch.from_padded(torch.ones(1, 2), log_prob=-torch.ones(1, 2), advantages=torch.ones(1, 2))
    with pytest.raises(ColumnError, match=f"'{behaviour}_log_prob'"):
        call("correction", "off-policy-sequence", {"behaviour": behaviour}, batch)


def test_the_turns_of_neighbouring_sequences_do_not_mix() -> None:
    old = torch.zeros(2, 2, dtype=torch.float64)
    rollout = torch.tensor([[0.0, -1.0], [-2.0, -4.0]], dtype=torch.float64)
    batch = Batch.from_padded(torch.ones(2, 2), old_log_prob=old, rollout_log_prob=rollout, turns=torch.zeros(2, 2, dtype=torch.long))
    weight, _ = pair(call("correction", "truncated-is", {"level": "segment", "cap": None}, batch))
    torch.testing.assert_close(weight.log(), torch.tensor([0.5, 0.5, 3.0, 3.0], dtype=torch.float64))


def test_m2po_treats_tied_tokens_alike_and_keeps_the_smallest() -> None:
    def kept(d: Sequence[float], threshold: float) -> list[bool]:
        return pair(call("correction", "m2po", {"m2_threshold": threshold}, tokens(d)))[1].tolist()

    assert kept([0.1, -0.5, 0.5, 0.1], 0.1) == [True, False, False, True]  # one 0.5 more would fit, but which?
    assert kept([1.0, -1.0, 1.0], 0.5) == [True, True, True]  # never nothing
    assert kept([1.0, 2.0, 3.0], 0.5) == [True, False, False]
    assert kept([0.1, 0.2, 0.3], 9.0) == [True, True, True]


def test_a_token_that_the_current_policy_finds_impossible_leaves() -> None:
    batch = Batch.from_padded(torch.ones(1, 3)).with_columns(Level.TOKEN, log_prob=torch.tensor([-0.7, -math.inf, -0.0]))
    assert pair(call("correction", "drop-impossible", {}, batch))[1].tolist() == [True, False, True]
    assert COMPONENTS["correction", "drop-impossible"].columns == ("log_prob",)  # the border refuses an infinite one that was recorded
    impossible = {"use": "drop-impossible", "denominator": "kept"}
    assert compose({"policy_loss": "ppo-clip", "correction": {**impossible, "decide": "measure"}}).warnings == ()
    with pytest.raises(RecipeError, match="decide: measure"):
        compose({"policy_loss": "ppo-clip", "correction": impossible})


def ess(w: Tensor) -> float:
    return float(w.sum() ** 2 / (len(w) * w.square().sum()))


@pytest.mark.parametrize("fraction", [0.3, 0.8, 0.99, 1.0])
@pytest.mark.parametrize("by", ["temper", "cap"])
@pytest.mark.parametrize("scale", [0.01, 1.0, 700.0])
def test_target_ess_takes_as_much_correction_as_it_may(by: str, fraction: float, scale: float) -> None:
    g = torch.Generator().manual_seed(0)
    batch = tokens((scale * torch.randn(200, generator=g, dtype=torch.float64)).tolist())
    params = {"by": by, "fraction": fraction, "log_ratio_bound": None if scale < 700 else 80.0}
    (weight, keep), report = call("correction", "target-ess", params, batch)
    assert keep is None
    raw = (batch["old_log_prob"] - batch["rollout_log_prob"]).clamp(-80, 80)
    assert ess(weight) >= fraction - 1e-9
    assert float(report["ess"].x) == pytest.approx(ess(weight), rel=1e-9)
    knob = float(report[f"ess_{by}"].x)
    if ess(raw.exp()) >= fraction:  # samples that suffice keep their weights
        torch.testing.assert_close(weight, raw.exp(), rtol=1e-12, atol=0)
    else:
        more = (raw * (knob + 1e-6)).exp() if by == "temper" else torch.minimum(raw, torch.tensor(math.log(knob) + 1e-6)).exp()
        assert ess(more) < fraction + 1e-12
        torch.testing.assert_close(weight, (raw * knob).exp() if by == "temper" else raw.exp().clamp(max=knob), rtol=1e-9, atol=0)


def test_target_ess_of_a_sequence_counts_sequences() -> None:
    """A long sequence counts as much as a short one."""
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 1, 1]])
    old = torch.zeros(2, 4, dtype=torch.float64)
    rollout = torch.tensor([[-1.0, 0, 0, 0], [0.0, 0, 0, 0]], dtype=torch.float64)
    batch = Batch.from_padded(mask, old_log_prob=old, rollout_log_prob=rollout)
    (_, _), report = call("correction", "target-ess", {"level": "sequence", "fraction": 0.1}, batch)
    assert float(report["ess"].x) == pytest.approx(ess(torch.tensor([math.e, 1.0], dtype=torch.float64)), rel=1e-12)


def test_normalised_weights_have_the_mean_one_over_what_is_left() -> None:
    chain = [("reject-k1", {"agg": "token", "lower": 0.8, "upper": 1.3}), ("truncated-is", {"cap": 1.1}), ("batch-normalise", {})]
    batch = world(9)
    weight, keep = corrected(batch, chain)
    assert 0 < int(keep.sum()) < len(keep)
    assert float(weight[keep].mean()) == pytest.approx(1, abs=1e-12)
    assert (weight[~keep] == 0).all()


DECOUPLED: list[tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]] = [
    ({"action": "mask", "behav_imp_weight_cap": 1.2}, [("masked-is", {"lower": None, "upper": 1.2})]),
    ({"action": "clamp", "behav_imp_weight_cap": 1.2, "behav_imp_weight_floor": 0.9}, [("truncated-is", {"floor": 0.9, "cap": 1.2})]),
    (
        {"action": "mask", "behav_imp_weight_cap": 1.1, "behav_imp_weight_floor": 0.9, "importance_sampling_level": "sequence"},
        [("masked-is", {"level": "geometric", "lower": 0.9, "upper": 1.1})],
    ),
    (
        {"action": "mask", "behav_imp_weight_cap": 1.2, "behav_imp_weight_floor": 0.8},
        [("reject-k1", {"agg": "token", "lower": 0.8, "upper": 1.2}), ("truncated-is", {"cap": None})],
    ),
]


@pytest.mark.parametrize(("params", "chain"), DECOUPLED, ids=str)
def test_the_decoupled_loss_is_a_clip_and_a_correction(params: dict[str, Any], chain: list[tuple[str, dict[str, Any]]]) -> None:
    batch = world(10)
    want = call("policy_loss", "decoupled-ppo", params, batch)[0]
    weight, keep = corrected(batch, chain)
    assert not keep.all() or params["action"] == "clamp"
    ours = torch.zeros_like(want)
    ours[keep] = weight[keep] * call("policy_loss", "ppo-clip", {}, batch.select(keep))[0]
    torch.testing.assert_close(ours, want, rtol=1e-12, atol=0)


def test_presets_are_what_they_say() -> None:
    batch = world(11)
    for ours, theirs in [
        (("icepop", {"lower": 0.7, "upper": 1.2}), ("masked-is", {"lower": 0.7, "upper": 1.2})),
        (("veto", {"threshold": 0.7}), ("outlier", {"lower": 0.7, "upper": None})),
        (("truncated-is", {"cap": None}), ("masked-is", {"lower": None, "upper": None})),
    ]:
        for a, b in zip(corrected(batch, [ours]), corrected(batch, [theirs]), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("bound", [0.5, 20.0, None])
@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("icepop", {}), ("icepop", {"strict": True}), ("masked-is", {}), ("masked-is", {"level": "sequence"}), ("masked-is", {"level": "geometric"}),
        ("reject-k1", {"agg": "token"}), ("reject-k1", {"agg": "sum"}), ("reject-k1", {"agg": "mean"}),
    ],
)  # fmt: skip
def test_what_is_far_out_is_judged_without_the_bound_of_its_weight(name: str, params: dict[str, Any], bound: float | None) -> None:
    """Bounds of e^30 and e^-30 are wider than any weight can be, and still reject what lies beyond them."""
    known = {"log_ratio_bound": bound} if "log_ratio_bound" in COMPONENTS["correction", name].params.model_fields else {}
    for d, stays in ((29.0, True), (31.0, False), (-29.0, True), (-31.0, False), (0.6, True)):
        weight, keep = pair(
            call("correction", name, {**params, **known, "lower": math.exp(-30), "upper": math.exp(30)}, tokens([d], old=-40.0))
        )
        assert keep is not None
        assert keep.tolist() == [stays]
        if weight is not None:
            assert float(weight) == pytest.approx(math.exp(max(-(bound or 99), min(d, bound or 99))))


@pytest.mark.parametrize("agg", ["token", "mean", "sum", "max"])
def test_k2_is_judged_without_a_bound(agg: str) -> None:
    for d, stays in ((24.0, True), (26.0, False), (-26.0, False)):
        assert pair(call("correction", "reject-k2", {"agg": agg, "upper": 25**2 / 2}, tokens([d], old=-40.0)))[1].tolist() == [stays]


def test_a_cap_reaches_as_far_as_it_says() -> None:
    batch = tokens([22.0, 40.0, 1.0], old=-50.0)
    for bound in (20.0, 0.5, None):
        (weight, _), _ = call("correction", "truncated-is", {"cap": math.exp(30), "log_ratio_bound": bound}, batch)
        torch.testing.assert_close(weight, torch.tensor([22.0, 30.0, 1.0], dtype=torch.float64).exp())
    (weight, _), _ = call("correction", "truncated-is", {"cap": None}, batch)
    torch.testing.assert_close(weight, torch.tensor([20.0, 20.0, 1.0], dtype=torch.float64).exp())
    huge = Batch.from_padded(torch.ones(1, 1), old_log_prob=torch.zeros(1, 1), rollout_log_prob=torch.full((1, 1), -1e4))
    assert pair(call("correction", "truncated-is", {"cap": 1e300}, huge))[0].isfinite().all()
