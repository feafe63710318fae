"""Weights & Biases: curves on a server, or in a folder with ``mode: offline``."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from ..registry import tracker
from .tracker import Tracker, needed


@tracker
def wandb(
    *,
    project: Annotated[str, "what the runs are shown under"] = "lossary",
    entity: Annotated[str | None, "whose project; null: the account's own"] = None,
    mode: Annotated[Literal["online", "offline"], "offline: into the run's folder, to be synced later"] = "online",
) -> Tracker:
    """Send to Weights & Biases; a resumed run goes on in the same one. Needs ``pip install wandb``, and ``wandb login`` if online."""
    return _Wandb(needed("wandb", "wandb", ["init"]), project, entity, mode)


@dataclass
class _Wandb:
    module: Any
    project: str
    entity: str | None
    mode: str
    run: Any = field(default=None)

    def open(self, run: Path, recipe: Mapping[str, Any], step: int) -> None:
        kept = run / "wandb.id"
        if not kept.exists():
            kept.write_text(uuid.uuid4().hex, "utf-8")
        self.run = self.module.init(
            project=self.project, entity=self.entity, mode=self.mode, dir=str(run), name=run.name, config=dict(recipe),
            id=kept.read_text("utf-8"), resume="allow",
        )  # fmt: skip
        # wandb drops a step that is not after the last; as a metric of its own it may be taken again.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.log({**metrics, "step": step})

    def close(self) -> None:
        self.run.finish()
