"""Trackers: where the metrics of a run go beside its own folder, whose JSON lines are always written."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .tensorboard import tensorboard
from .tracker import Tracker, Tracking, numbers
from .trackio import trackio
from .wandb import wandb

__all__ = ["Tracker", "Tracking", "numbers", "tensorboard", "trackio", "wandb"]


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [tensorboard, trackio, wandb]
