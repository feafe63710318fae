"""Corrections: each token's weight and whether it stays, decided once in ``estimate`` or ``measure``, or anew in every ``loss``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Ranks
from ..numerics import accumulator, mismatch, safe_divide
from ..registry import ColumnError, Level, Max, Mean, Min
from .bound import Bound, View
from .metrics import Measure, measure

Made = Mapping[str, tuple[Any, Level]]
WEIGHT = "correction"
"""The column that holds the product of the weights."""


def corrected(bounds: Iterable[Bound], batch: Batch, made: Made, ranks: Ranks) -> Batch:
    """Return the batch with the weights of a chain, in which the actor's terms see what it kept; each link sees what earlier ones left.

    ``made`` holds what a model gave for all tokens of the batch. Waits for the device where tokens may go.
    """
    reports: dict[str, Measure] = {}
    if batch.kept is None and WEIGHT not in batch:
        batch = batch.with_columns(Level.TOKEN, **{WEIGHT: torch.ones_like(batch.sequences.index, dtype=_real(batch, made))})
    for bound in bounds:
        inner = batch if batch.kept is None else batch.kept
        view = View(inner, inner.sequences.across(ranks), _cut(made, batch, inner))
        weight, keep, report = _pair(bound, view)
        reports.update(report)
        if keep is not None:
            reports.update(_dropped(bound, inner, keep))
        if weight is not None:
            weight = inner[WEIGHT] * weight
            reports.update(_summary(weight, keep, ranks))
            inner = inner.with_columns(Level.TOKEN, **{WEIGHT: weight})
            batch = inner if batch.kept is None else replace(batch, kept=inner)
        if keep is not None:
            batch = batch.keeping(keep)
    return replace(batch, reports={**batch.reports, **reports})


def decided(bounds: Iterable[Bound], view: View, weight: Tensor, reports: dict[str, Measure]) -> tuple[Tensor, Tensor | None]:
    """Return ``(weight, keep)`` after the rules that decide inside ``loss``, on outputs without gradient; ``weight`` is that before them.

    Each link sees the weight so far, but all tokens: how many are left must not shape anything here. Never waits for the device.
    """
    keep: Tensor | None = None
    for bound in bounds:
        w, k, report = _pair(bound, replace(view, made={**view.made, WEIGHT: (weight, Level.TOKEN)}))
        reports.update(report)
        if k is not None:
            reports.update(_dropped(bound, view.batch, k))
            keep = k if keep is None else keep & k
        weight = weight if w is None else weight * w
    return weight, keep


def apart(batch: Batch, ranks: Ranks) -> dict[str, Measure]:
    """Report how far trainer and sampler are apart before any correction, and the effective sample size that their raw ratios leave."""
    if "old_log_prob" not in batch or "rollout_log_prob" not in batch:
        return {}
    old, rollout = (batch.column(name, Level.TOKEN) for name in ("old_log_prob", "rollout_log_prob"))
    found: dict[str, Any] = dict(mismatch(old, rollout, batch.sequences))
    ratio = found["rollout_is_mean"]
    found["rollout_is_eff_sample_size"] = _ess(ratio.x, ratio.where, ranks)
    return {f"rollout_corr/{name}": measure(x, "the distance of trainer and sampler") for name, x in found.items()}


def _real(batch: Batch, made: Made) -> torch.dtype:
    found = [x.dtype for x in (*batch.columns.values(), *(x for x, _ in made.values())) if isinstance(x, Tensor) and x.is_floating_point()]
    return found[0] if found else torch.float32


def _cut(made: Made, batch: Batch, inner: Batch) -> Made:
    if inner is batch:
        return made
    where = batch.kept_tokens
    return {n: (x.index_select(0, where) if level is Level.TOKEN else x, level) for n, (x, level) in made.items()}


def _pair(bound: Bound, view: View) -> tuple[Tensor | None, Tensor | None, dict[str, Measure]]:
    out = bound(view)
    if not isinstance(out, tuple) or len(out) != 2:
        raise ColumnError(f"{bound.who} must return (weight, keep), one value per token each; None for the one that it does not give.")
    (weight, keep), report = out if isinstance(out[0], tuple) else (out, {})
    if weight is not None:
        weight = bound.shaped(weight, view, Level.TOKEN).detach()
    if keep is not None and (not isinstance(keep, Tensor) or keep.dtype != torch.bool or keep.shape != view.sequences.index.shape):
        what = f"{keep.dtype} {list(keep.shape)}" if isinstance(keep, Tensor) else type(keep).__name__
        raise ColumnError(f"{bound.who} returned {what} as 'keep'; expected one boolean per token.")
    if keep is not None and not bound.component.drops:
        raise ColumnError(f"{bound.who} returned a 'keep', but its signature promises that every token stays.")
    if weight is not None and not bound.component.weighs:
        raise ColumnError(f"{bound.who} returned a weight, but its signature promises that it weighs nothing.")
    return weight, keep, {f"correction/{name}": measure(x, bound.who) for name, x in report.items()}


def _dropped(bound: Bound, batch: Batch, keep: Tensor) -> dict[str, Measure]:
    """Report what share of the tokens goes, of all and by the sign of the advantage: a rule that drops one sign shifts the mean."""
    name, gone = f"correction/{bound.component.name.replace('-', '_')}_dropped", ~keep
    found: dict[str, Any] = {name: Mean(gone)}
    if "advantages" in batch:
        sign = batch.column("advantages", Level.TOKEN)
        found |= {f"{name}_positive": Mean(gone, sign > 0), f"{name}_negative": Mean(gone, sign < 0)}
    return {key: measure(x, bound.who) for key, x in found.items()}


def _summary(weight: Tensor, keep: Tensor | None, ranks: Ranks) -> dict[str, Measure]:
    """Report the product of the weights so far, and its effective sample size."""
    where = torch.ones_like(weight, dtype=torch.bool) if keep is None else keep
    found: dict[str, Any] = {
        "weight": Mean(weight, where), "weight/max": Max(weight, where), "weight/min": Min(weight, where), "ess": _ess(weight, where, ranks)
    }  # fmt: skip
    return {f"correction/{key}": measure(x, "correction") for key, x in found.items()}


def _ess(weight: Tensor, where: Tensor, ranks: Ranks) -> Mean:
    """Return ``(sum w)^2 / (n sum w^2)``, the share of the tokens that equally weighted ones would need for the same noise."""
    wide = torch.where(where, weight, 0.0).to(accumulator(weight))
    total, squares, count = ranks.sum(torch.stack([wide.sum(), wide.square().sum(), where.sum().to(wide.dtype)])).unbind()
    return Mean(safe_divide(total.square(), count * squares).reshape(1), (count > 0).reshape(1))
