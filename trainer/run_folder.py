"""A run's folder: the recipe as it was resolved, metrics as JSON lines, one checkpoint."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..registry import LossaryError
from .checkpoint import Saved, newest


def file_name(name: str) -> str:
    """Return a name as a run's folder bears it: one from a stranger's recipe stays a name."""
    return re.sub(r"[^\w.+-]+", "-", name).strip(".-") or "run"


class RunFolder:
    """Where a run writes. A new run gets the next free number; a resumed one goes on where its checkpoint stands."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics, self.recipe = path / "metrics.jsonl", path / "recipe.yaml"

    @property
    def checkpoint(self) -> Path:
        """The newest whole one; without any ``LossaryError`` is raised."""
        if (found := newest(self.path)) is None:
            raise LossaryError(f"{self.path} has no checkpoint to resume from.")
        return found

    @classmethod
    def new(cls, parent: Path, name: str, recipe: str, code: Mapping[str, bytes] | None = None) -> "RunFolder":
        """Make ``parent/name-0001`` or the next free number, and write the recipe and its plugin files (``recipe.code()``) into it."""
        name = file_name(name)
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LossaryError(f"the folder {parent} for runs cannot be made: {error}") from error
        for number in range(1, 1_000_000):
            folder = cls(parent / f"{name}-{number:04d}")
            try:
                folder.path.mkdir()
                break
            except FileExistsError:
                continue
            except OSError as error:
                raise LossaryError(f"the run folder {folder.path} cannot be made: {error}") from error
        for place, source in (code or {}).items():
            file = folder.path / place
            if not Path(os.path.normpath(file)).is_relative_to(os.path.normpath(folder.path)):
                raise LossaryError(f"the plugin file {place} would be written outside the run folder {folder.path}.")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(source)
        folder.keep_recipe(recipe)
        return folder

    def keep_recipe(self, text: str) -> None:
        """Write the recipe that the run follows from now on."""
        aside = self.recipe.with_suffix(".partial")
        aside.write_text(text, "utf-8")
        os.replace(aside, self.recipe)

    @classmethod
    def existing(cls, path: Path) -> "RunFolder":
        """Open a run to resume it; a folder without a checkpoint raises ``LossaryError``."""
        folder = cls(path)
        held = Saved(folder.checkpoint).plain
        # A resume with overrides writes its checkpoint first; where it was killed before it wrote the recipe, that is done now.
        if (
            isinstance(held, dict)
            and folder.recipe.exists()
            and held.get("recipe_before") == folder.recipe.read_text("utf-8") != held["recipe"]
        ):
            folder.keep_recipe(held["recipe"])
        return folder

    def append(self, line: Mapping[str, Any]) -> None:
        """Add one line and hand it to the system at once, so that a kill loses at most the line being written."""
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=True) + "\n")

    def keep_until(self, step: int, *, write: bool = True) -> list[dict[str, Any]]:
        """Drop the lines of steps that a resumed run will take again, also a line that was cut off; return the others."""
        kept = []
        if not self.metrics.exists():
            raise LossaryError(f"{self.metrics} is gone; put it back to resume, or start a new run.")
        texts = self.metrics.read_text("utf-8", errors="replace").splitlines()
        for i, text in enumerate(texts):
            try:
                line = json.loads(text)
                if line["step"] <= step:
                    kept.append(line)
            except (json.JSONDecodeError, TypeError, KeyError) as error:
                if i < len(texts) - 1:  # only the last line can have been cut off by a kill
                    raise LossaryError(f"{self.metrics}:{i + 1}: no line of metrics: {text[:40]!r}") from error
        if not write:  # of several ranks only one does
            return kept
        aside = self.metrics.with_suffix(".partial")
        aside.write_text("".join(json.dumps(line) + "\n" for line in kept), "utf-8")
        os.replace(aside, self.metrics)
        return kept
