"""Who made the NaN: the term, the component, the token, and the first operation. Asked only after the fact, never in the hot path.

The term runs once to find where it is broken and once more under a mode that keeps every operation's outputs; from the broken value the
way goes back through those operations to the first whose inputs were still whole, or to a column that came in broken.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective
from ..pipeline.correcting import WEIGHT
from ..pipeline.terms import Term
from ..registry import FIELDS, Level, LossaryError
from .dump import save_batch
from .running import Share, fresh, share
from .tracing import Step, Trace


@dataclass(frozen=True)
class Blame:
    """Where a loss, a gradient or a metric broke, and what broke it."""

    what: str
    """``"loss"``, ``"gradient of log_prob"``, ``"metric actor/ppo_kl"``, ``"weight"`` or ``"coefficient"``."""
    term: str
    component: str
    column: str | None
    """The column that came in broken; None: all were whole, and ``operation`` made it of them."""
    operation: str | None
    """The first operation with a broken output, and the line it stands on."""
    value: float
    sequence: int | None = None
    token: int | None = None
    """Its place in the sequence, from 0."""
    columns: Mapping[str, float] = field(default_factory=dict)
    """What every column holds at that token."""
    dumped: str | None = None

    def __str__(self) -> str:
        at = "" if self.sequence is None else f" at sequence {self.sequence}" + ("" if self.token is None else f", token {self.token}")
        came = f"column {self.column!r} is {self.value:g}{at}" if self.column else f"{self.operation} gives {self.value:g}{at}"
        held = "; there " + ", ".join(f"{n} = {x:.6g}" for n, x in self.columns.items()) if self.columns else ""
        kept = f" The batch is in {self.dumped}." if self.dumped else ""
        return f"{self.what} of term {self.term!r} ({self.component}) is broken: {came}{held}.{kept}"


@dataclass(frozen=True)
class Broken:
    """What counts as broken: what is not finite, or beyond a bound."""

    above: float | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return where."""
        if not x.is_floating_point():
            return torch.zeros_like(x, dtype=torch.bool)
        wrong = ~x.isfinite()
        return wrong if self.above is None else wrong | (x.abs() > self.above)


def localise(objective: Objective, batch: Batch, columns: Mapping[str, Tensor], *, above: float | None = None) -> Blame | None:
    """Return who broke the loss of a weighed batch, its gradients or a metric; None: nothing is broken.

    ``columns`` are what the model gave. ``above`` also counts a per-token loss or a gradient beyond it as broken: an explosion. Unlike a
    search for NaN in columns it says what became of them, and finds what whole columns were turned into.
    """
    if batch.totals is None:
        raise LossaryError("this batch was not weighed: call objective.weigh(batch) before asking who broke its loss.")
    alone, wrong = fresh(objective), Broken(above)
    packed = {n: batch.layout.pack(x, n) if FIELDS[n].level is Level.TOKEN else x for n, x in columns.items()}
    packed = {n: x.detach().float() if x.dtype in (torch.float16, torch.bfloat16) else x.detach() for n, x in packed.items()}
    for term in alone.plan.terms:
        made = share(alone, term, batch, packed)
        found = _first(made, wrong)
        if found is not None:
            return _blamed(alone, batch, packed, made, *found, wrong)
    return None


def blame_and_dump(
    path: str | Path, objective: Objective, batch: Batch, columns: Mapping[str, Tensor], *, recipe: Any = None, above: float | None = None
) -> Blame | None:
    """Dump a batch whose step was skipped and say who broke it; an older dump at ``path`` is an error, as ``save_batch`` says."""
    blame = localise(objective, batch, columns, above=above)
    note = "" if blame is None else str(blame)
    save_batch(path, batch, objective=objective, recipe=recipe, outputs=columns, note=note)
    return None if blame is None else replace(blame, dumped=str(path))


def _first(made: Share, wrong: Broken) -> tuple[str, int | None] | None:
    """Return what is broken first, and at which of the batch's tokens (None: at none of them alone)."""
    sequences, where = made.side.view.sequences, made.where
    weights, loss = made.side.batch.weights[made.term.aggregation], made.loss.detach()
    if not bool(torch.isfinite(torch.as_tensor(made.coefficient))):
        return "coefficient", None
    if bool((bad := ~weights.isfinite()).any()):
        return "weight", int(where[bad][0])
    if bool((bad := wrong(loss)).any()):
        if made.level is Level.GROUP:
            bad = sequences.group_spread(bad)
        tokens = bad if made.level is Level.TOKEN else sequences.spread(bad)
        if bool(tokens.any()):  # what has no tokens has no say
            return "loss", int(where[tokens][0])
    for name, g in made.gradients.items():
        if bool((bad := wrong(g)).any()):
            place = int(bad.nonzero()[0, 0])
            return f"gradient of {name}", int(sequences.offsets[place]) if name == "log_z" else place
    for name, m in made.reports.items():
        if isinstance(m.value, Tensor) and bool(wrong(m.value).any()) and float(m.count) > 0 and m.kind == "mean":
            return f"metric {name}", None
    return None


def _blamed(
    objective: Objective, batch: Batch, columns: Mapping[str, Tensor], made: Share, what: str, place: int | None, wrong: Broken
) -> Blame:
    term = made.term
    known = {n: x for n, x in {**batch.columns, **columns}.items() if x.is_floating_point()}
    if what in ("weight", "coefficient"):
        who = objective.plan.aggregations[term.aggregation].who if what == "weight" else f"coefficient {term.coefficient.key!r}"
        value = made.side.batch.weights[term.aggregation][made.where == place][0] if what == "weight" else made.coefficient
        return _at(Blame(what, term.name, who, None, who, float(value)), batch, known, place)
    span = _span(made, batch, place)
    for tokens in (slice(place, None if place is None else place + 1), span):
        came = _column(term, batch, known, tokens)
        if came is not None:
            name, there, value = came
            return _at(Blame(what, term.name, term.bound.who, name, None, value), batch, known, there)
    look = _Look(wrong, batch, made, span)
    with Trace(look) as trace:
        again = share(objective, term, batch, columns)
    root = trace.origin(_broken_of(again, what))
    if root is None:
        return _at(Blame(what, term.name, term.bound.who, None, "an operation that could not be followed", math.nan), batch, known, place)
    return _at(Blame(what, term.name, term.bound.who, None, str(root), root.value), batch, known, look.place(root, place))


def _span(made: Share, batch: Batch, place: int | None) -> slice:
    """Return the tokens that may have broken one: itself, its sequence, or all, by the scope of the loss."""
    scope = made.term.bound.component.scope
    if place is None or scope in ("group", "step"):
        return slice(0, batch.sequences.index.shape[0])
    if scope == "token":
        return slice(place, place + 1)
    row = int(batch.sequences.index[place])
    begin = int(batch.sequences.offsets[row])
    return slice(begin, begin + batch.lengths[row])


def _column(term: Term, batch: Batch, known: Mapping[str, Tensor], tokens: slice) -> tuple[str, int, float] | None:
    """Return the first column that the term reads and that is not finite in a range of tokens, where, and its value."""
    for name in (n for n in known if n in term.bound.reads or (n == WEIGHT and term.corrected)):
        per_sequence = batch.levels.get(name) is Level.SEQUENCE or name == "log_z"
        x = batch.sequences.spread(known[name]) if per_sequence else known[name]
        x, meant = x[tokens], FIELDS.get(name)
        bad = x.isinf() if meant is not None and meant.nan_means else ~x.isfinite()
        if meant is not None and meant.inf_means:
            bad &= x != -torch.inf
        if bool(bad.any()):
            inside = int(bad.nonzero()[0, 0])
            return name, (tokens.start or 0) + inside, float(x[bad][0])
    return None


@dataclass(frozen=True)
class _Look:
    """Where in whatever tensor a broken value counts: at the tokens in question, or anywhere if it is not laid out by token or sequence."""

    wrong: Broken
    batch: Batch
    made: Share
    span: slice

    def cut(self, x: Tensor) -> slice:
        """Return the range of a tensor's first axis that belongs to the tokens in question."""
        size = x.shape[0] if x.dim() else -1
        if size == self.batch.sequences.index.shape[0]:
            return self.span
        if size == self.made.where.shape[0]:
            edges = torch.searchsorted(self.made.where, torch.tensor([self.span.start, self.span.stop], device=x.device)).tolist()
            return slice(*edges)
        if size == len(self.batch):
            rows = self.batch.sequences.index[self.span]
            return slice(int(rows[0]), int(rows[-1]) + 1) if len(rows) else slice(0, 0)
        return slice(None)

    def __call__(self, x: Tensor) -> Tensor:
        """Return where a tensor is broken."""
        bad = self.wrong(x)
        if not x.dim():
            return bad
        only = torch.zeros_like(bad)
        cut = self.cut(x)
        only[cut] = bad[cut]
        return only

    def place(self, root: Step, otherwise: int | None) -> int | None:
        """Return the token at which an operation broke first."""
        assert root.broken is not None
        if not root.out.dim():
            return otherwise
        first, size = int(root.broken.nonzero()[0, 0]), root.out.shape[0]
        if size == self.batch.sequences.index.shape[0]:
            return first
        return int(self.made.where[first]) if size == self.made.where.shape[0] else otherwise


def _broken_of(made: Share, what: str) -> Tensor:
    if what == "loss":
        return made.loss
    kind, _, name = what.partition(" ")
    if kind == "gradient":
        return made.gradients[name.removeprefix("of ")]
    value = made.reports[name].value
    assert isinstance(value, Tensor)
    return value


def _at(blame: Blame, batch: Batch, known: Mapping[str, Tensor], place: int | None) -> Blame:
    """Return the blame with its place in the batch and what every column holds there."""
    if place is None:
        return blame
    row, held = int(batch.sequences.index[place]), {}
    for name, x in known.items():
        at = row if batch.levels.get(name) is Level.SEQUENCE or name == "log_z" else place
        if x.dim() == 1:
            held[name] = float(x[at])
    return replace(blame, sequence=row, token=place - int(batch.sequences.offsets[row]), columns=held)
