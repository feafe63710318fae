"""One token, term by term: from its columns to what it adds to the loss and what it asks of the policy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective
from ..registry import FIELDS, ColumnError, Level
from .running import Share, share
from .tracing import Step, Trace

SILENT = ("clone", "detach", "index_select", "_to_copy", "alias", "view", "expand", "zeros_like", "ones_like", "full_like", "copy")
"""Operations that change nothing a reader would look for."""


@dataclass(frozen=True)
class Operation:
    """One step of the arithmetic at the token."""

    name: str
    place: str
    inputs: tuple[str, ...]
    value: float


@dataclass(frozen=True)
class TermAt:
    """One term at one token."""

    term: str
    component: str
    params: Mapping[str, object]
    seen: bool
    """False: a correction dropped the token, or the term's weight there is 0."""
    level: str
    loss: float
    """Of the token, or of its sequence or group."""
    aggregation: str
    weight: float
    correction: float | None
    coefficient: float
    contribution: float
    share: float | None
    """Of all that the term's tokens add, by size."""
    slopes: Mapping[str, float]
    """The gradient of the contribution with respect to the model's columns at this token."""
    effective_weight: float | None
    """Of the policy term: what is left of the advantage."""
    operations: tuple[Operation, ...]

    @property
    def branch(self) -> str:
        """What the effective weight says of the token, in words; empty for other terms."""
        g = self.effective_weight
        if g is None:
            return ""
        if not self.seen:
            return "dropped: no gradient"
        return "cut off: no gradient" if g == 0 else "pushed against its advantage" if g < 0 else "pushed as its advantage says"


@dataclass(frozen=True)
class Explained:
    """All that a step does with one token."""

    sequence: int
    token: int
    length: int
    columns: Mapping[str, tuple[float, str]]
    """Each column at the token, with its unit; those of its sequence too."""
    group: tuple[int, int] | None
    """Which group, and how many sequences it has here."""
    log_ratio: float | None
    terms: tuple[TermAt, ...]

    @property
    def ratio(self) -> float | None:
        """The policy's probability over the old one's."""
        return None if self.log_ratio is None else math.exp(min(self.log_ratio, 700.0))

    @property
    def total(self) -> float:
        """What the token adds to the loss."""
        return sum(t.contribution for t in self.terms)


def explain(objective: Objective, batch: Batch, columns: Mapping[str, Tensor], sequence: int, token: int) -> Explained:
    """Return the arithmetic of one token of a weighed batch; a place outside it raises ``ColumnError`` that says what there is."""
    if not 0 <= sequence < len(batch):
        raise ColumnError(f"there is no sequence {sequence}; the batch has {len(batch)}, counted from 0.")
    if not 0 <= token < batch.lengths[sequence]:
        raise ColumnError(f"sequence {sequence} has no token {token}; it has {batch.lengths[sequence]}, counted from 0.")
    place = int(batch.sequences.offsets[sequence]) + token
    held = {}
    for name, x in {**columns, **batch.columns}.items():
        if x.dim() == 1:
            per_sequence = batch.levels.get(name) is Level.SEQUENCE or name == "log_z"
            held[name] = (float(x[sequence if per_sequence else place]), FIELDS[name].unit if name in FIELDS else "")
    old = "log_prob" if objective.plan.old_log_prob == "current" else "old_log_prob"
    gap = held["log_prob"][0] - held[old][0] if "log_prob" in held and old in held else None
    group = None if not batch.groups else (batch.groups[sequence], batch.groups.count(batch.groups[sequence]))
    terms = tuple(_term(objective, batch, columns, i, place) for i in range(len(objective.plan.terms)))
    return Explained(sequence, token, batch.lengths[sequence], held, group, gap, terms)


def _term(objective: Objective, batch: Batch, columns: Mapping[str, Tensor], which: int, place: int) -> TermAt:
    with Trace() as trace:
        made = share(objective, objective.plan.terms[which], batch, columns)
    term, n = made.term, batch.sequences.index.shape[0]
    each = made.per_token(n).double()
    at = (made.where == place).nonzero().flatten().tolist()
    inside = at[0] if at else None
    weight = float(made.side.batch.weights[term.aggregation][inside]) if inside is not None else 0.0
    slopes = {n_: float(g[place]) for n_, g in made.gradients.items() if g.dim() == 1 and n_ != "log_z" and bool((g != 0).any())}
    sizes = float(each.abs().sum())
    corrected = made.side.weight is not None and term.corrected and inside is not None
    return TermAt(
        term=term.name,
        component=term.bound.component.name,
        params=dict(term.bound.params),
        seen=inside is not None and weight != 0,
        level=made.level.value,
        loss=_loss_at(made, inside),
        aggregation=term.aggregation,
        weight=weight,
        correction=float(made.side.weight[inside]) if corrected and made.side.weight is not None else None,
        coefficient=float(made.coefficient),
        contribution=float(each[place]),
        share=abs(float(each[place])) / sizes if sizes else None,
        slopes=slopes,
        effective_weight=_effective(batch, made, place, weight),
        operations=() if inside is None else _operations(trace, made, inside),
    )


def _loss_at(made: Share, inside: int | None) -> float:
    if inside is None:
        return math.nan
    loss, sequences = made.loss.detach(), made.side.view.sequences
    if made.level is Level.GROUP:
        loss = sequences.group_spread(loss)
    return float((loss if made.level is Level.TOKEN else sequences.spread(loss))[inside])


def _effective(batch: Batch, made: Share, place: int, weight: float) -> float | None:
    if made.term.bound.component.kind.name != "policy_loss" or "advantages" not in batch:
        return None
    a = float(batch.column("advantages", Level.TOKEN)[place])
    slope = float(made.gradients["log_prob"][place]) / (float(made.coefficient) or 1.0)
    return None if a == 0 else 0.0 if slope == 0 or weight == 0 else -slope / (a * weight)


def _operations(trace: Trace, made: Share, inside: int) -> tuple[Operation, ...]:
    """Return the arithmetic of the loss itself at one token: what stands on lines of the component, up to its result."""
    n, chosen = made.where.shape[0], []
    for step in trace.steps:
        ours = step.out.dim() == 1 and step.out.shape[0] == n and step.place and step.name not in SILENT
        if ours and not step.place.startswith(HIDDEN):
            inputs = tuple(_said(x, n, inside) for x in step.inputs if x is None or isinstance(x, (Tensor, int, float)))
            chosen.append(Operation(step.name, step.place, inputs, float(step.out.detach()[inside])))
        if _ends(step, made):
            break
    return tuple(chosen)


HIDDEN = ("summing.py", "bound.py", "batch.py", "sequences.py", "correcting.py", "sums.py")
"""Files whose lines belong to the pipeline, not to the loss."""


def _ends(step: Step, made: Share) -> bool:
    return step.out.untyped_storage()._cdata == made.loss.untyped_storage()._cdata and step.out.shape == made.loss.shape


def _said(x: Tensor | float | None, n: int, inside: int) -> str:
    if x is None:
        return "none"
    if not isinstance(x, Tensor) or x.dim() == 0:
        return f"{float(x) + 0.0:.6g}"
    if x.shape[0] == n and x.dim() == 1:
        value = x.detach()[inside]
        return str(bool(value)).lower() if x.dtype == torch.bool else f"{float(value) + 0.0:.6g}"
    return f"[{', '.join(map(str, x.shape))}]"
