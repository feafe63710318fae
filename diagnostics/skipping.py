"""What a step that was left out leaves behind: a sentence that says who broke it, and the batch in a file for the first few."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective
from .blame import blame_and_dump, localise
from .packing import DumpError

KEPT = 3
"""Batches that one run keeps: the first tell the cause, and the disk is for checkpoints."""


def cause(place: Path, count: int, objective: Objective, batch: Batch, columns: Mapping[str, Tensor], recipe: Any = None) -> str:
    """Return a sentence on who broke a weighed batch, before which ``count`` others were left out; the first are dumped at ``place``.

    Unlike ``blame_and_dump`` it never raises: what looks for the cause of a skipped step must not end a run that would go on.
    """
    path = place.with_name(f"{place.name}.safetensors")
    there = path.exists()  # a resumed run takes the step again
    try:
        if there or count >= KEPT:
            found = localise(objective, batch, columns)
        else:
            found = blame_and_dump(path, objective, batch, columns, recipe=recipe)
    except DumpError as error:
        return f" The batch was not kept: {error}"
    except Exception as error:  # a term may raise anything for columns that are broken
        return f" The cause was not found: {type(error).__name__}: {' '.join(str(error).split())}"
    kept = path.name if there or count < KEPT else None
    if found is not None:
        return f" The {replace(found, dumped=kept)}"
    return f" No term is broken in the batch{f', which is in {kept}' if kept else ''}."
