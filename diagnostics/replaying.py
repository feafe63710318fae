"""One file, two recipes: where their losses part, by term and by token."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective
from ..registry import ColumnError
from .dump import Dump
from .packing import DumpError
from .running import Result, rerun, shares

MOST = 5
"""Tokens that are named."""


@dataclass(frozen=True)
class Gap:
    """One token to which two recipes give different contributions."""

    term: str
    sequence: int
    token: int
    """Its place in the sequence, from 0."""
    before: float
    after: float


@dataclass(frozen=True)
class TermGap:
    """One term under two recipes: its part of the total, coefficient included, and the size of its gradient on the model's columns."""

    term: str
    before: float | None
    """None: the recipe lacks the term."""
    after: float | None
    gradient_before: float
    gradient_after: float
    tokens: int
    """Tokens whose contribution or gradient is another."""
    gaps: tuple[Gap, ...]

    @property
    def same(self) -> bool:
        """Whether nothing at all is different."""
        return not self.tokens and self.before == self.after


@dataclass(frozen=True)
class Comparison:
    """What a file came to under one recipe and under another."""

    before: Result
    after: Result
    terms: tuple[TermGap, ...]
    anew: str
    """From which stage both were run again: ``"loss"``, ``"weigh"`` or ``"estimate"``."""
    caution: str = ""


def differences(recorded: Result, again: Result) -> list[str]:
    """Return the names of what is not equal to the last bit: ``loss``, ``term x``, ``gradient x``, ``metric x``."""
    out = [] if _equal(recorded.total, again.total) else ["loss"]
    for what, a, b in (("term", recorded.terms, again.terms), ("gradient", recorded.gradients, again.gradients)):
        out += [f"{what} {n}" for n in sorted({*a, *b}) if n not in a or n not in b or not _equal(a[n], b[n])]
    metrics = {**recorded.metrics, **again.metrics}
    return out + [f"metric {n}" for n in sorted(metrics) if not _same(recorded.metrics.get(n), again.metrics.get(n))]


def compare(dump: Dump, before: Objective, after: Objective) -> Comparison:
    """Run a dumped batch under two objectives from the first stage in which they part, and say where the results do.

    Where they estimate alike the file's advantages stand; else both estimate anew from what the file holds, so that nothing but the
    recipe is different. A file that was never weighed is weighed here.
    """
    if not dump.outputs:
        raise DumpError("the file holds no output of a model, so there is no loss to compare.")
    anew, caution = "weigh", ""
    if _estimates(before) != _estimates(after):
        anew, caution = "estimate", _cut(dump.batch)
    one, other = (_prepared(dump.batch, o, anew) for o in (before, after))
    first, second = (rerun(o, b, dump.outputs, dump.generator) for o, b in ((before, one), (after, other)))
    return Comparison(first, second, _terms(dump.outputs, (before, one), (after, other)), anew, caution)


def weighed(dump: Dump, objective: Objective) -> Batch:
    """Return the file's batch as its loss saw it; one that was never weighed goes through the stages first."""
    return dump.batch if dump.batch.totals is not None else _prepared(dump.batch, objective, "estimate")


def _estimates(objective: Objective) -> list[Any]:
    """Return what of a plan acts before ``weigh``."""
    plan = objective.plan
    kl = [(k.bound.component.name, dict(k.bound.params), k.coefficient.fixed) for k in plan.reward_kl]
    bounds = [*plan.rewards, *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections)]
    return [kl, plan.denominator, *((b.slot, b.component.name, dict(b.params)) for b in bounds)]


def _cut(batch: Batch) -> str:
    if batch.totals is not None and batch.kept is None and float(batch.share) < 1:
        return "The file holds a part of a step; what is estimated over the step is estimated over that part."
    return "The file holds one optimizer step; what is estimated over the whole rollout is estimated over that step."


def _prepared(batch: Batch, objective: Objective, anew: str) -> Batch:
    if anew == "estimate":
        raw = replace(batch, kept=None, measured=False, reports={})
        batch = objective.estimate(raw.without(["correction"]) if raw.estimated else raw)
        if len(batch) != len(raw):
            gone = len(raw) - len(batch)
            raise ColumnError(
                f"a filter of {objective.plan.name} drops {gone} of {len(raw)} sequences; two recipes are compared on the same."
            )
    return objective.weigh(batch, totals=batch.totals)


def _terms(outputs: Mapping[str, Tensor], *sides: tuple[Objective, Batch]) -> tuple[TermGap, ...]:
    made = [{s.term.name: s for s in shares(objective, batch, outputs)} for objective, batch in sides]
    batch = sides[0][1]
    n = batch.sequences.index.shape[0]
    out = []
    for name in dict.fromkeys([*made[0], *made[1]]):
        found = [m.get(name) for m in made]
        values = [None if s is None else float(s.coefficient * s.value) for s in found]
        per_token = [torch.zeros(n, dtype=torch.float64) if s is None else s.per_token(n).double() for s in found]
        slopes = [_slopes(s.gradients if s is not None else {}, n) for s in found]
        changed = ~_bits(per_token[0], per_token[1]) | ~_bits(slopes[0], slopes[1]).all(1)
        gaps = _gaps(name, batch, per_token)
        norms = [float(x.square().sum().sqrt()) for x in slopes]
        out.append(TermGap(name, values[0], values[1], norms[0], norms[1], int(changed.sum()), gaps))
    return tuple(out)


def _slopes(gradients: Mapping[str, Tensor], n: int) -> Tensor:
    """``[N, columns]``: the gradients that reach single tokens."""
    found = [g.double() for name, g in sorted(gradients.items()) if g.dim() == 1 and g.shape[0] == n and name != "log_z"]
    return torch.stack(found, 1) if found else torch.zeros(n, 1, dtype=torch.float64)


def _gaps(term: str, batch: Batch, per_token: list[Tensor]) -> tuple[Gap, ...]:
    apart = (per_token[1] - per_token[0]).abs().nan_to_num(torch.inf, torch.inf)
    size, order = apart.topk(min(MOST, apart.shape[0]))
    chosen = order[size > 0]
    rows, places = batch.sequences.index[chosen].tolist(), batch.sequences.places[chosen].tolist()
    before, after = (x[chosen].tolist() for x in per_token)
    return tuple(Gap(term, *at) for at in zip(rows, places, before, after, strict=True))


def _bits(a: Tensor, b: Tensor) -> Tensor:
    """Where two tensors are the same, NaN like NaN."""
    if a.shape != b.shape:
        return torch.zeros_like(a, dtype=torch.bool)
    return (a == b) | ((a != a) & (b != b))


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(_bits(a, b).all())


def _same(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and a != a and b != b)
