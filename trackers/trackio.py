"""trackio: a local dashboard with the calls of wandb."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from ..registry import tracker
from .tracker import Tracker, needed


@tracker
def trackio(*, project: Annotated[str, "what the runs are shown under"] = "lossary") -> Tracker:
    """Send to trackio's database on this machine; look at it with ``trackio show``. Needs ``pip install trackio``."""
    return _Trackio(needed("trackio", "trackio", ["init", "log", "finish"]), project)


@dataclass
class _Trackio:
    module: Any
    project: str

    def open(self, run: Path, recipe: Mapping[str, Any], step: int) -> None:
        # The path makes the name its own: two folders of runs both count from 1.
        self.module.init(project=self.project, name=str(run), config=dict(recipe), resume="allow" if step else "never")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.module.log(dict(metrics), step=step)

    def close(self) -> None:
        self.module.finish()
