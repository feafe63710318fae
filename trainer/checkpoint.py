"""Checkpoints that are whole or absent: written aside, flushed to disk, then renamed."""

import os
from pathlib import Path
from typing import Any

import torch

from ..registry import LossaryError, listing

PARTS = frozenset({"step", "recipe", "policy", "reference", "critic", "optimizers", "objective"})
"""What a run's checkpoint holds."""


def save(path: Path, content: dict[str, Any]) -> None:
    """Replace ``path`` in one step; a kill at any moment leaves the old file or the new one."""
    aside = path.with_suffix(".partial")
    try:
        with aside.open("wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
        aside.unlink(missing_ok=True)
        raise LossaryError(f"the checkpoint {path} cannot be written, the one before it is kept: {error}") from error
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint: tensors and plain values only, no code."""
    try:
        content: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is none
        why = " ".join(str(error).partition("\n")[0].split())
        raise LossaryError(f"{path} is no checkpoint: {type(error).__name__}{': ' if why else ''}{why}") from error
    if not isinstance(content, dict) or not set(content) >= PARTS:
        raise LossaryError(f"{path} is no checkpoint of a run: it has not all of {listing(PARTS)}.")
    return content
