"""Inspect a batch: run the checks that have something to look at, and put what they find in order."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import torch

from ..batch import Batch
from ..pipeline import Objective, Plan
from ..registry import ColumnError
from . import (
    checks_advantages,
    checks_columns,
    checks_denominators,
    checks_groups,
    checks_lengths,
    checks_masks,
    checks_mismatch,
    checks_ratios,
    checks_reference,
    checks_rewards,
)
from .finding import SERIOUS, Finding, Inspection
from .outside import sight_of_padded
from .sight import Check, Sight

Cost = Literal["cheap", "full"]
CHECKS: tuple[Check, ...] = (
    *checks_masks.CHECKS, *checks_columns.CHECKS, *checks_ratios.CHECKS, *checks_reference.CHECKS, *checks_mismatch.CHECKS,
    *checks_rewards.CHECKS, *checks_groups.CHECKS, *checks_advantages.CHECKS, *checks_lengths.CHECKS, *checks_denominators.CHECKS,
)  # fmt: skip
"""Every check, in the order in which they run."""


@torch.no_grad()
def inspect(
    batch: Batch | None = None,
    objective: Objective | Plan | None = None,
    *,
    cost: Cost = "full",
    step: int | None = None,
    mask: Any = None,
    names: str = "lossary",
    **columns: Any,
) -> Inspection:
    """Ask a batch every question, or with ``cost="cheap"`` those that a trainer can ask in every step.

    ``objective`` says what the columns are for and, once it has committed some, how many steps were taken (a plan: only the first);
    ``step`` says the latter where it is known otherwise, as that a batch is of before the first. Instead of a batch, tensors of somebody else: ``mask`` ``[B, T]`` and columns, ``[B, T]`` or ``[B]``, which may be as
    wrong as they like, since nothing crosses the border. Differs from ``Batch.from_padded``, which raises at the first fault of what it
    can know alone. Neither or both raise ``ColumnError``. Waits for the device.
    """
    if (batch is None) == (mask is None):
        raise ColumnError("inspect needs either a batch, or mask=... and columns.")
    if batch is not None and columns:
        raise ColumnError(f"inspect was given a batch and the column {next(iter(columns))!r}; put it into the batch by with_columns.")
    if batch is None:
        return inspect_padded(mask, columns, objective, cost=cost, step=step, names=names)
    return _inspected(Sight(batch), objective, cost, step)


def inspect_padded(
    mask: Any,
    columns: Mapping[str, Any],
    objective: Objective | Plan | None = None,
    *,
    cost: Cost = "full",
    step: int | None = None,
    names: str = "lossary",
) -> Inspection:
    """Ask padded tensors: ``inspect(mask=..., **columns)`` where the columns stand in a mapping, whatever they are called."""
    with torch.no_grad():
        return _inspected(sight_of_padded(mask, columns, names), objective, cost, step)


def _inspected(sight: Sight, objective: Objective | Plan | None, cost: Cost, step: int | None) -> Inspection:
    if isinstance(objective, Objective):
        step = objective.memory.step or None if step is None else step  # a new one may have been composed for an old batch
        needed = {**objective.needs("estimate")} if not sight.batch.estimated and sight.batch.totals is None else {}
        sight = replace(sight, plan=objective.plan, needed=needed, step=step)
    else:
        sight = replace(sight, plan=objective, step=step)
    return asked([c for c in CHECKS if cost == "full" or c.cost == "cheap"], sight)


def asked(checks: list[Check], sight: Sight) -> Inspection:
    """Run checks on what they can look at; findings come worst first."""
    findings: list[Finding] = []
    ran, skipped = [], {}
    for check in checks:
        if why := check.lacks(sight):
            skipped[check.name] = why
            continue
        findings += check.findings(sight)
        ran.append(check.name)
    findings.sort(key=lambda f: f.severity != SERIOUS)
    return Inspection(tuple(findings), tuple(ran), skipped)
