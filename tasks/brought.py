"""Columns that a task fills beside the reward: what its grader knows of an answer and a component of the same plugin may read."""

from collections.abc import Callable, Mapping, Sequence

import torch

from ..batch import Batch
from ..registry import FIELDS, Column, ColumnError, Level, Vocabulary
from .task import Item, Task

Filler = Callable[[Item, str], float]


def fillers_of(task: Task) -> Mapping[str, Filler]:
    """Return ``{column: function of an item and its completion}``, which a task may offer as ``columns``; most offer none."""
    found: Mapping[str, Filler] = getattr(task, "columns", {})
    return found


def own_columns(task: Task, known: Vocabulary) -> list[Column]:
    """Return the columns that a task fills.

    One that nobody declared, that is built in, or that is no number per sequence raises ``ColumnError``.
    """
    for name in fillers_of(task):
        if name not in known:
            raise ColumnError(f"the task fills the column {name!r}, which nobody declared: return it from lossary_fields().")
        if name in FIELDS:
            raise ColumnError(f"the task fills the column {name!r}, which is not its own: the trainer makes the built-in ones.")
        if known[name].level is not Level.SEQUENCE or known[name].wide or known[name].integer:
            raise ColumnError(f"the task fills the column {name!r}; it can fill only columns of one real number per sequence.")
    return [known[name] for name in fillers_of(task)]


def filled(task: Task, batch: Batch, items: Sequence[Item], completions: Sequence[str], known: Vocabulary) -> Batch:
    """Return the batch with the task's own columns; a value that is not finite raises ``ColumnError``."""
    for c in own_columns(task, known):
        fill = fillers_of(task)[c.name]
        values = torch.tensor([float(fill(i, said)) for i, said in zip(items, completions, strict=True)])
        if not bool(torch.isfinite(values).all()):
            raise ColumnError(f"the task filled the column {c.name!r} with a value that is not finite.")
        batch = batch.with_columns(c.level, **{c.name: values})
    return batch
