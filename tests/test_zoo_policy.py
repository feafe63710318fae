"""The policy losses where no framework's numbers look: claims, hand-made cases, equivalences, holes in the sampler's report."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import lossary
from lossary.batch import Batch
from lossary.registry import Level, Totals

BOOK = {(c.kind.name, c.name): c for c in lossary.catalog() if c.distribution == "lossary"}


def call(kind: str, name: str, params: Mapping[str, Any], batch: Batch, totals: Totals | None) -> Any:
    """Call a component as the pipeline does: columns by name, hyperparameters checked."""
    c = BOOK[kind, name]
    special = {"sequences": batch.sequences, "totals": totals, "step": torch.tensor(2)}

    def get(name: str, level: Level | None, optional: bool) -> Any:
        if name in special:
            return special[name]
        return None if optional and name not in batch else batch.column(name, level)

    columns = [get(i.name, i.level, i.optional) for i in c.inputs]
    return c.function(*columns, **c.params.model_validate(params).model_dump())


def little(**more: Tensor) -> Batch:
    """Two groups of two sequences; the policy has moved."""
    g = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 1, 4, 2])
    names = ("old_log_prob", "log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob")
    columns = {n: -2 * torch.rand(10, generator=g, dtype=torch.float64) for n in names}
    columns |= {
        "advantages": torch.randn(10, generator=g, dtype=torch.float64),
        "entropy": torch.rand(10, generator=g, dtype=torch.float64),
    }
    columns |= {"rewards": torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64), "log_z": torch.zeros(4, dtype=torch.float64)}
    columns |= {"policy_version": torch.arange(10) % 3, "demonstration": (torch.arange(10) < 4).double()}
    columns |= {"turns": torch.arange(10) // 2, "group_ids": torch.tensor([0, 0, 1, 1])}
    return Batch.from_packed(lengths, **{**columns, **more})


def gradient(use: str, batch: Batch, log_prob: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
    """Return the loss and the gradient of the plain sum of a loss."""
    leaf = log_prob.detach().clone().requires_grad_()
    out = call("policy_loss", use, params, batch.with_columns(Level.TOKEN, log_prob=leaf), None)
    loss = out[0] if isinstance(out, tuple) else out
    loss.sum().backward()
    return loss.detach(), leaf.grad


def gradient_of(kind: str, use: str, batch: Batch, **params: Any) -> tuple[Tensor, Tensor]:
    """Return the same of a loss of any kind, at the batch's own log-probabilities."""
    leaf = batch["log_prob"].detach().clone().requires_grad_()
    out = call(kind, use, params, batch.with_columns(Level.TOKEN, log_prob=leaf), None)
    loss = out[0] if isinstance(out, tuple) else out
    loss.sum().backward()
    return loss.detach(), leaf.grad


POLICY = [c for (kind, _), c in BOOK.items() if kind == "policy_loss"]


@pytest.mark.parametrize("component", [c for c in POLICY if "on-policy-gradient" in c.claims], ids=lambda c: c.name)
def test_on_policy_the_gradient_is_the_advantage(component: Any) -> None:
    batch, same = little(), little()["old_log_prob"]
    batch = batch.with_columns(Level.TOKEN, rollout_log_prob=same, ref_log_prob=same)
    _, grad = gradient(component.name, batch, same)
    torch.testing.assert_close(grad, -batch["advantages"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("component", [c for c in POLICY if "rollout_log_prob" in c.columns], ids=lambda c: c.name)
def test_a_token_that_the_sampler_did_not_score_weighs_one(component: Any) -> None:
    """Its NaN reaches neither its own gradient nor any other's, and it counts as if sampler and trainer had agreed."""
    base = little()
    hole = base["rollout_log_prob"].clone()
    hole[4] = float("nan")
    agreed = base["rollout_log_prob"].clone()
    agreed[4] = base["old_log_prob" if "old_log_prob" in component.columns else "log_prob"][4]
    params = {"rollout_is_threshold": 3.0} if component.name == "vespo" else {}
    found = [gradient(component.name, little(rollout_log_prob=x), base["log_prob"], **params) for x in (hole, agreed)]
    assert found[0][1].isfinite().all()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_sequence_level_topr_tapers_whole_bad_sequences() -> None:
    batch = little()
    _, grad = gradient("topr", batch, batch["log_prob"], positive_by="reward")
    ratio = batch.sequences.sum(batch["log_prob"] - batch["old_log_prob"]).exp()
    weight = torch.where(batch["rewards"] > 0, 1.0, ratio.clamp(max=1))
    torch.testing.assert_close(grad, -batch["advantages"] * batch.sequences.spread(weight))


def test_dro_of_sequences_has_the_cross_terms() -> None:
    batch = little()
    loss, grad = gradient("dro", batch, batch["log_prob"], importance_sampling_level="sequence", dro_beta=0.3)
    whole = batch.sequences.sum(batch["log_prob"] - batch["old_log_prob"])
    torch.testing.assert_close(loss.sum(), (-batch["advantages"] * batch["log_prob"]).sum() + 0.15 * whole.square().sum())
    torch.testing.assert_close(grad, -batch["advantages"] + 0.3 * batch.sequences.spread(whole))


def test_segments_end_where_sequences_end() -> None:
    """One turn number throughout: the segments are the sequences."""
    batch = little(turns=torch.zeros(10, dtype=torch.long))
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    for ours, theirs in zip(
        gradient("segment-ratio", batch, batch["log_prob"], **bounds), gradient("gspo", batch, batch["log_prob"], **bounds), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_optimal_value_comes_from_the_group_or_the_recipe() -> None:
    batch = little()
    loss, _ = gradient("a2po", batch, batch["ref_log_prob"])  # no distance from the reference: what is left is the reward's
    r = batch["rewards"].view(2, 2)
    best = 0.5 * ((r / 0.5).exp().mean(1).log())
    torch.testing.assert_close(loss, (r - best[:, None]).square().view(-1))
    loss, _ = gradient("a2po", batch, batch["ref_log_prob"], v_star=0.25)
    torch.testing.assert_close(loss, (batch["rewards"] - 0.25).square())


def test_clip_cov_draws_by_noise_and_otherwise_takes_the_largest() -> None:
    batch = little()
    band = {"clip_cov_lb": -100.0, "clip_cov_ub": 100.0, "clip_cov_ratio": 0.2, "clip_ratio_high": 500.0}
    noise = torch.linspace(1, 0, 10, dtype=torch.float64)
    _, drawn = gradient("clip-cov", batch.with_columns(Level.TOKEN, noise=noise), batch["log_prob"], **band)
    assert (drawn == 0).nonzero().flatten().tolist() == [8, 9]
    _, largest = gradient("clip-cov", batch, batch["log_prob"], **band)
    a, p = batch["advantages"], batch["log_prob"]
    cov = (a - a.mean()) * (p - p.mean())
    assert sorted((largest == 0).nonzero().flatten().tolist()) == sorted(cov.topk(2).indices.tolist())


def test_cpgd_clips_the_log_ratio_and_bounds_the_drift() -> None:
    batch = little()
    d, a = batch["log_prob"] - batch["old_log_prob"], batch["advantages"]
    loss, grad = gradient("cpgd", batch, batch["log_prob"], drift_coef=0.5)
    silent = torch.where(a >= 0, d > torch.tensor(1.2).log(), d < torch.tensor(0.8).log())
    torch.testing.assert_close(grad, torch.where(silent, 0.0, -a) + 0.5 * (d.exp() - 1).clamp(max=1.0))
    clipped = torch.where(a >= 0, d.clamp(max=math.log(1.2)), d.clamp(min=math.log(0.8)))
    torch.testing.assert_close(loss, -a * clipped + 0.5 * (d.exp() - 1 - d))


@pytest.mark.parametrize(("use", "params"), [("topr", {"positive_by": "reward"}), ("vespo", {"rollout_is_threshold": 2.0})])
def test_a_column_that_a_setting_needs_is_asked_for_by_name(use: str, params: Mapping[str, Any]) -> None:
    columns = {n: torch.zeros(2) for n in ("log_prob", "old_log_prob", "advantages")}
    with pytest.raises(lossary.ColumnError, match=f"'{use}' with .* needs the column"):
        call("policy_loss", use, params, Batch.from_packed(torch.tensor([2]), **columns), None)


# ── equivalences ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("grpo", {}), ("ppo-clip", {})),
        (("cispo", {"imp_ratio_cap": 1.5}), ("importance-sampling", {"objective": "score", "imp_ratio_cap": 1.5})),
        (("tis", {}), ("cispo", {"imp_ratio_cap": 1.0})),
        (("two-sided-delta", {"delta": 3.0}), ("dual-clip", {"clip_ratio_c": 3.0})),
        (("luspo", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1}), ("gspo", {"clip_ratio_low": 0.1, "clip_ratio_high": 0.1})),
        (("opmd", {"tau": 0.0}), ("reinforce", {})),
        (("rec", {"clip_mode": "none", "regularizer": "k2", "regularizer_coef": 0.2}), ("dro", {"dro_beta": 0.4})),
        (("dppo-tv", {"clip_ratio_low": 1.0, "clip_ratio_high": 1.0, "clip_ratio_c": 1.5}), ("cispo", {"imp_ratio_cap": 1.5})),
        (("high-entropy", {"top_entropy_quantile": 1.0}), ("ppo-clip", {"clip_ratio_high": 0.28})),
        (("opsm", {"opsm_delta": 99.0}), ("ppo-clip", {})),
    ],
    ids=lambda x: x[0],
)  # fmt: skip
def test_two_names_for_one_thing(one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> None:
    batch = little()
    (loss, grad), (same, its) = (gradient(use, batch, batch["log_prob"], **params) for use, params in (one, other))
    torch.testing.assert_close(loss, same, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(grad, its, rtol=1e-12, atol=1e-12)


def test_a_sequence_of_one_token_is_clipped_as_a_token() -> None:
    batch = little()
    one = Batch.from_packed(torch.ones(10, dtype=torch.long), **{n: batch[n] for n in ("log_prob", "old_log_prob", "advantages")})
    for ours, theirs in zip(gradient("sequence-clip", one, one["log_prob"]), gradient("ppo-clip", one, one["log_prob"]), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_whole_sequence_is_clipped_by_its_product() -> None:
    batch = little()
    loss, grad = gradient("sequence-clip", batch, batch["log_prob"], clip_ratio_low=0.3, clip_ratio_high=0.3)
    for i, (a, b) in enumerate(((0, 3), (3, 4), (4, 8), (8, 10))):
        ratio, mean = (batch["log_prob"] - batch["old_log_prob"])[a:b].sum().exp(), batch["advantages"][a:b].mean()
        plain, bounded = -ratio * mean, -ratio.clamp(0.7, 1.3) * mean
        torch.testing.assert_close(loss[i], torch.maximum(plain, bounded))
        torch.testing.assert_close(grad[a:b], (plain if plain >= bounded else 0 * plain).expand(b - a))


def test_gmpo_takes_weights_in_as_their_geometric_mean() -> None:
    batch = little()
    weights = torch.linspace(0.5, 2.0, 10, dtype=torch.float64)
    plain, _ = gradient("gmpo", batch, batch["log_prob"])
    loss, _ = gradient("gmpo", batch.with_columns(Level.TOKEN, correction=weights), batch["log_prob"])
    torch.testing.assert_close(loss, plain * batch.sequences.mean(weights.log()).exp())


def test_distillation_may_measure_the_student_as_it_was() -> None:
    batch = little()
    gap = batch["teacher_log_prob"] - batch["old_log_prob"]
    loss, grad = gradient("opd", batch, batch["log_prob"], student="old", loss_max_clamp=None, opd_kl_coef=2.0)
    for ours, theirs in zip((loss, grad), gradient("dual-clip", little(advantages=2 * gap), batch["log_prob"]), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_loglinear_draws_the_old_policy_between_sampler_and_learner() -> None:
    """Two steps are done: tokens of version 2 are fresh, of version 1 one step old, of version 0 two."""
    batch = little()
    alpha = torch.tensor([0.0, 1 / 2, 2 / 3], dtype=torch.float64)[2 - batch["policy_version"]]
    old = batch["rollout_log_prob"] + alpha * (batch["log_prob"] - batch["rollout_log_prob"])
    ours = gradient("loglinear-ppo", batch, batch["log_prob"])
    for one, other in zip(ours, gradient("decoupled-ppo", little(old_log_prob=old), batch["log_prob"]), strict=True):
        torch.testing.assert_close(one, other)


# ── auxiliary losses ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_chord_teaches_demonstrations_at_the_edge_of_what_is_known() -> None:
    batch = little()
    p, shown = batch["log_prob"].exp(), batch["demonstration"] > 0
    loss, grad = gradient_of("auxiliary_loss", "chord", batch)
    torch.testing.assert_close(grad, torch.where(shown, -p * (1 - p), 0.0))
    torch.testing.assert_close(loss, torch.where(shown, -p * (1 - p) * batch["log_prob"], 0.0))
    _, plain = gradient_of("auxiliary_loss", "chord", batch, phi=False)
    torch.testing.assert_close(plain, -shown.double())
    away = batch.with_columns(Level.TOKEN, log_prob=torch.where(shown, batch["log_prob"], float("-inf")))
    _, grad = gradient_of("auxiliary_loss", "chord", away)
    assert grad.isfinite().all(), "what was no demonstration cannot hurt"


def test_sdar_only_ever_pushes_up() -> None:
    batch = little()
    gap = batch["teacher_log_prob"] - batch["log_prob"]
    loss, grad = gradient_of("auxiliary_loss", "sdar", batch, gate_beta=2.0)
    torch.testing.assert_close(grad, -1 / (1 + (-2 * gap).exp()))
    torch.testing.assert_close(loss, gap / (1 + (-2 * gap).exp()))


def test_kdrl_pulls_towards_the_teacher_only_when_weighed() -> None:
    batch = little(old_log_prob=little()["log_prob"])
    gap = batch["log_prob"] - batch["teacher_log_prob"]
    weighed, bare = (gradient_of("auxiliary_loss", "kdrl", batch, weigh=weigh) for weigh in (True, False))
    torch.testing.assert_close(weighed[0], bare[0])
    torch.testing.assert_close(weighed[1], gap)
    torch.testing.assert_close(bare[1], torch.ones_like(gap))


def test_the_selection_by_entropy_keeps_the_undecided_share() -> None:
    batch = little()
    _, keep = call("correction", "high-entropy", {"top_entropy_quantile": 0.3}, batch, None)
    assert sorted(keep.nonzero().flatten().tolist()) == sorted(batch["entropy"].topk(3).indices.tolist())
