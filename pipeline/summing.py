"""One micro-batch: every term on its side of the objective, weighed and added up."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..numerics import accumulator
from ..registry import ColumnError, Level
from .bound import Bound, View, scalar_like
from .correcting import WEIGHT, Made, decided
from .memory import Watch
from .metrics import Measure, measure
from .needs import MODEL
from .terms import Plan, Term
from .vocabulary import VOCAB, Rows, in_chunks, over_words

CRITIC = ("values", "value_logits")
SEQUENCE = ("log_z",)


@dataclass(frozen=True)
class Side:
    """What the terms of the actor, or of the critic, see of a micro-batch."""

    batch: Batch
    view: View
    rows: Mapping[str, Rows]
    """What has one value per word, not spelt out yet."""
    keep: Tensor | None = None
    """``[N]``: which tokens stay, where that was decided here; their number must not shape anything."""
    weight: Tensor | None = None
    """``[N]``: what a correction multiplies the policy loss with."""


@dataclass(frozen=True)
class Outputs:
    """What a model gave for the tokens of a micro-batch."""

    columns: Mapping[str, Tensor]
    rows: Mapping[str, Rows]

    @classmethod
    def of(cls, given: Mapping[str, Any], micro: Batch, needed: Mapping[str, str], call: str = "loss(micro") -> "Outputs":
        """Pack and widen what was given, or what the batch carries; what is needed and absent raises ``ColumnError``."""
        columns: dict[str, Tensor] = {}
        rows: dict[str, Rows] = {}
        for name, x in given.items():
            x = micro.columns.get(name) if x is None else x
            if x is None:
                continue
            if name in VOCAB:
                rows[name] = Rows.packed(x, micro.layout, name)
                continue
            if not isinstance(x, Tensor) or not x.is_floating_point():
                what = x.dtype if isinstance(x, Tensor) else type(x).__name__
                raise ColumnError(f"{name} is {what}; expected real numbers of a floating type.")
            if name in SEQUENCE:
                if x.shape != micro.sequences.lengths.shape:
                    raise ColumnError(f"{name} has the shape {list(x.shape)}; expected [{len(micro)}], one value per sequence.")
            elif given[name] is not None:
                x = micro.layout.pack(x, name)
            columns[name] = x if x.dtype in (torch.float32, torch.float64) else x.float()
        for name, who in needed.items():
            if name not in columns and name not in rows:
                raise ColumnError(f"{who} needs {name!r} from the model: {call}, {name}=...).")
        return cls(columns, rows)

    @property
    def dtype(self) -> torch.dtype:
        """In which the loss is given: that of the columns, or else of the logits, at least float32."""
        found = [x.dtype for x in (*self.columns.values(), *(r.x for r in self.rows.values()))]
        return found[0] if found and found[0] in (torch.float32, torch.float64) else torch.float32

    def rows_of(self, role: str) -> dict[str, Rows]:
        """Return what one role has per word."""
        return {n: r for n, r in self.rows.items() if (n in CRITIC) == (role == "critic")}

    def made(self, role: str) -> dict[str, tuple[Any, Level]]:
        """Return the columns of one role with their levels."""
        chosen = {n: x for n, x in self.columns.items() if (n in CRITIC) == (role == "critic")}
        return {n: (x, Level.SEQUENCE if n in SEQUENCE else Level.TOKEN) for n, x in chosen.items()}

    def anchors(self, role: str, certain: frozenset[str] = frozenset()) -> list[Tensor]:
        """Return the tensors of one role that a gradient reaches, to be joined by empty sums; not those ``certain`` to be in already."""
        found = [x for n, x in self.columns.items() if (n in CRITIC) == (role == "critic") and n not in certain]
        for name, r in self.rows.items():
            if name in MODEL and (name in CRITIC) == (role == "critic"):
                found += [x for x in r.leaves if x is not None]
        return [x for x in found if x.requires_grad]


def certain(plan: Plan) -> frozenset[str]:
    """Return the model's columns that some term learns from whatever happens: it reads no other, and without a gradient it would raise."""
    alone = (t.bound.reads & set(MODEL) for t in plan.terms)
    return frozenset(name for names in alone if len(names) == 1 for name in names)


def side_of(plan: Plan, role: str, micro: Batch, outputs: Outputs, reports: dict[str, Measure]) -> Side:
    """Return what one role's terms see: the critic's all tokens, the actor's those that corrections left."""
    made = outputs.made(role)
    rows = outputs.rows_of(role)
    batch = micro
    if role == "actor" and micro.kept is not None:
        batch, where = micro.kept, micro.kept_tokens
        made = {n: (x.index_select(0, where) if level is Level.TOKEN else x, level) for n, (x, level) in made.items()}
        rows = {n: r.select(where) for n, r in rows.items()}
    return shown(plan, role, batch, made, rows, reports)


def shown(plan: Plan, role: str, batch: Batch, made: Made, rows: Mapping[str, Rows], reports: dict[str, Measure]) -> Side:
    """Return a side of some tokens, after the rules that decide in ``loss``."""
    made = dict(made)
    if role == "actor" and plan.old_log_prob == "current" and "log_prob" in made:
        made["old_log_prob"] = (made["log_prob"][0].detach(), Level.TOKEN)
    view = View(batch, batch.sequences, made, totals=batch.totals)
    side = Side(batch, view, rows, weight=batch.columns.get(WEIGHT) if role == "actor" and plan.corrections else None)
    rules = [c.bound for c in plan.corrections if c.when == "loss"] if role == "actor" else []
    return _decided(rules, side, reports) if rules else side


def _decided(rules: list[Bound], side: Side, reports: dict[str, Measure]) -> Side:
    """Apply rules that read the current policy. What they drop gets no gradient, whatever a loss makes of it."""
    made, n = side.view.made, side.view.sequences.index.shape[0]
    like = next((x for x, level in made.values() if level is Level.TOKEN), side.view.sequences.index)
    sofar = like.new_ones(n, dtype=like.dtype if like.is_floating_point() else torch.float32) if side.weight is None else side.weight
    quiet = {n: (x.detach(), level) for n, (x, level) in made.items()}
    weight, keep = decided(rules, replace(side.view, made=quiet), sofar, reports)
    if keep is not None:  # cut before the arithmetic: behind it a gradient of 0 could still meet an infinite slope
        cut = {n: (torch.where(keep, x, x.detach()) if level is Level.TOKEN else x, level) for n, (x, level) in made.items()}
        rows = {n: replace(r, keep=keep) for n, r in side.rows.items()}
        side = replace(side, view=replace(side.view, made=cut), rows=rows, keep=keep)
    return replace(side, view=replace(side.view, made={**side.view.made, WEIGHT: (weight, Level.TOKEN)}), weight=weight)


def summed(term: Term, side: Side, memory: Watch, chunk: int, reports: dict[str, Measure]) -> Tensor:
    """Return a term's share of the step's mean; what it reported goes to ``reports`` under its role."""
    loss = unreduced(term, side, memory, chunk, reports)
    level = term.bound.component.returns or Level.TOKEN
    if watched(term):
        memory.observe(term.coefficient.key, loss, side.batch.sequences, level)
    return weighed(term, side, loss, level)


def watched(term: Term) -> bool:
    """Whether its coefficient wants to know what it came to."""
    return term.coefficient.bound is not None and "measured" in term.coefficient.bound.reads


def unreduced(term: Term, side: Side, memory: Watch, chunk: int | None, reports: dict[str, Measure]) -> Tensor:
    """Return a term's loss for each token, sequence or group of a side; without ``chunk`` the logits are there, and are few."""
    bound, batch, view = term.bound, side.batch, side.view
    if "step" in bound.reads:
        view = replace(view, step=scalar_like(memory.step, batch.rows))
    measured: Mapping[str, Measure]
    if over_words(bound):
        loss, measured = in_chunks(bound, view, side.rows, chunk)
    else:
        result, report, _ = bound.parts(view)
        loss = bound.shaped(result, view, bound.component.returns or Level.TOKEN)
        measured = {name: measure(x, bound.who) for name, x in report.items()}
    if torch.is_grad_enabled() and not loss.requires_grad and _learns(bound, side):
        raise ColumnError(f"{bound.who} returned a loss without a gradient, though the model's output has one; was it detached?")
    for name, m in measured.items():
        taken = f"{term.role}/{name}" in reports  # two terms may measure the same thing of different columns
        reports[f"{term.role}/{term.name}_{name}" if taken else f"{term.role}/{name}"] = m
    return loss


def _learns(bound: Bound, side: Side) -> bool:
    return bound.learns(side.view) or any(rows.requires_grad for name, rows in side.rows.items() if name in bound.reads)


def weighed(term: Term, side: Side, loss: Tensor, level: Level) -> Tensor:
    """Return the weighted sum of a term's losses."""
    factor = side.weight if term.corrected else None
    if factor is None and side.keep is None and level is Level.TOKEN:  # the common case: nothing changes them between two terms
        return (side.batch.weights_in(loss.dtype, term.aggregation) * loss).sum(dtype=accumulator(loss))
    sequences, weight = side.batch.sequences, side.batch.weights[term.aggregation]
    if factor is not None:
        weight = weight * factor
    if side.keep is not None:
        weight = torch.where(side.keep, weight, 0.0)
    if level is not Level.TOKEN:
        weight = sequences.sum(weight)
        if level is Level.GROUP:
            weight = sequences.group_sum(weight)
    if level is not Level.TOKEN or side.keep is not None:
        loss = torch.where(weight != 0, loss, 0.0)  # what has no tokens has no say, whatever was computed for it
    return (weight.to(loss.dtype) * loss).sum(dtype=accumulator(loss))
