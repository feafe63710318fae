"""Checkpoints that are whole or absent: written aside, flushed to disk, then renamed."""

import os
from pathlib import Path
from typing import Any

import torch

from ..registry import LossaryError


def save(path: Path, content: dict[str, Any]) -> None:
    """Replace ``path`` in one step; a kill at any moment leaves the old file or the new one."""
    aside = path.with_suffix(".partial")
    with aside.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
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
        raise LossaryError(f"{path} is no checkpoint: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    return content
