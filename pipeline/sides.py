"""What the terms of the actor, or of the critic, see of a micro-batch."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..batch import Batch
from ..registry import Level
from .bound import Bound, View
from .correcting import WEIGHT, Made, decided
from .metrics import Measure
from .outputs import Outputs
from .terms import Plan
from .vocabulary import Rows


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
