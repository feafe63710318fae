"""TensorBoard: event files in the run's folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt

from ..registry import tracker
from .tracker import Tracker, needed


@tracker
def tensorboard(*, flush_seconds: Annotated[int, Gt(0), "the longest that a curve lags behind"] = 30) -> Tracker:
    """Write event files into ``RUN/tensorboard``; look at them with ``tensorboard --logdir RUN``. Needs ``pip install tensorboard``."""
    return _TensorBoard(needed("torch.utils.tensorboard", "tensorboard", ["SummaryWriter"]), flush_seconds)


@dataclass
class _TensorBoard:
    module: Any
    flush_seconds: int
    writer: Any = field(default=None)

    def open(self, run: Path, recipe: Mapping[str, Any], step: int) -> None:
        # Events of steps that are taken again are hidden by the first new one.
        purge = step + 1 if step else None
        self.writer = self.module.SummaryWriter(str(run / "tensorboard"), purge_step=purge, flush_secs=self.flush_seconds)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()
