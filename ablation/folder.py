"""An ablation's folder: what was planned, the recipes, one folder for each run; what is true stands in the runs' own files."""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..registry import LossaryError
from ..trainer.run_folder import RunFolder
from .ablation import Ablation
from .variants import Grid


@dataclass(frozen=True)
class Run:
    """One variant with one seed."""

    variant: str
    slug: str
    seed: int
    steps: int


class AblationFolder:
    """``plan.json``, ``ablation.yaml``, ``recipes/<variant>.yaml``, ``runs/seed-<n>/<variant>-0001``, and an index that may be thrown away."""

    def __init__(self, path: Path) -> None:
        self.path, self.plan_file, self.index = path, path / "plan.json", path / "index.sqlite"

    @classmethod
    def existing(cls, path: Path) -> "AblationFolder":
        """Open a folder; one that no ablation was run in raises ``LossaryError``."""
        folder = cls(path)
        if not folder.plan_file.is_file():
            raise LossaryError(f"{path} is no folder of an ablation: it has no plan.json. `lossary ablate FILE` makes one.")
        return folder

    def prepare(self, ablation: Ablation, grid: Grid) -> None:
        """Write down what is planned; a variant that has another recipe than the folder's raises ``LossaryError``."""
        for variant in grid.variants:
            file = self.recipe(variant.slug)
            if file.exists() and file.read_text("utf-8") != variant.recipe:
                raise LossaryError(
                    f"{self.path} holds an ablation in which {variant.name!r} is another recipe ({file}); say another --out."
                )
        (self.path / "recipes").mkdir(parents=True, exist_ok=True)
        for variant in grid.variants:
            for place, source in variant.code.items():
                (self.path / "recipes" / place).parent.mkdir(parents=True, exist_ok=True)
                (self.path / "recipes" / place).write_bytes(source)
            _write(self.recipe(variant.slug), variant.recipe)
        _write(self.path / "ablation.yaml", ablation.text)
        plan = {
            "name": ablation.name,
            "lossary": __version__,
            "score": ablation.score,
            "seeds": ablation.seeds,
            "vary": ablation.vary,
            "base": grid.base,
            "base_is_recipe": grid.base_is_recipe,
            "variants": [
                {"name": v.name, "slug": v.slug, "contestant": v.contestant, "stratum": v.stratum, "changes": v.changes, "steps": v.steps}
                for v in grid.variants
            ],
        }
        _write(self.plan_file, json.dumps(plan, indent=1) + "\n")

    def plan(self) -> dict[str, Any]:
        """Return what is planned."""
        made: dict[str, Any] = json.loads(self.plan_file.read_text("utf-8"))
        return made

    def recipe(self, slug: str) -> Path:
        """Return a variant's recipe."""
        return self.path / "recipes" / f"{slug}.yaml"

    def runs(self) -> list[Run]:
        """Return every run, seeds in turn, so that what is there after half the time is a whole ablation with half the seeds."""
        plan = self.plan()
        return [Run(v["name"], v["slug"], seed, v["steps"]) for seed in plan["seeds"] for v in plan["variants"]]

    def home(self, run: Run) -> Path:
        """Return the folder in which a run's own folder is made."""
        return self.path / "runs" / f"seed-{run.seed}"

    def run_path(self, run: Run) -> Path | None:
        """Return a run's own folder, or None before there is one."""
        found = sorted(p for p in self.home(run).glob(f"{run.slug}-*") if p.name[len(run.slug) + 1 :].isdecimal())
        return found[-1] if found else None

    def resumable(self, run: Run) -> Path | None:
        """Return a run's folder if it can be gone on with."""
        path = self.run_path(run)
        if path is not None:
            try:
                return RunFolder.existing(path).path
            except LossaryError:
                return None
        return None

    def lines(self, run: Run) -> list[dict[str, Any]]:
        """Return what a run has measured; a line that was cut off, or tells no step, is none."""
        path = self.run_path(run)
        file = path / "metrics.jsonl" if path else None
        made: list[dict[str, Any]] = []
        for text in file.read_text("utf-8", errors="replace").splitlines() if file and file.exists() else ():
            try:
                line = json.loads(text)
            except json.JSONDecodeError:
                continue
            if isinstance(line, dict) and isinstance(line.get("step"), int):
                made.append(line)
        return made

    def finished(self, run: Run) -> bool:
        """Whether a run took its last step."""
        lines = self.lines(run)
        return bool(lines) and lines[-1].get("step") == run.steps

    def failure(self, run: Run) -> str | None:
        """Return why a run ended before its last step, or None."""
        file = self.home(run) / f"{run.slug}.failed"
        return file.read_text("utf-8") if file.exists() else None

    def note_failure(self, run: Run, why: str | None) -> None:
        """Write down why a run failed; None: it is to be tried again."""
        file = self.home(run) / f"{run.slug}.failed"
        if why is None:
            file.unlink(missing_ok=True)
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            _write(file, why)

    def lock(self) -> IO[str]:
        """Hold the folder as long as the file that is returned is open, here or in a run begun here."""
        self.path.mkdir(parents=True, exist_ok=True)
        file = (self.path / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            who = file.read().strip() or "unknown"
            file.close()
            raise LossaryError(f"{self.path} is being worked on by process {who}.") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        return file


def state_of(folder: AblationFolder, run: Run) -> Mapping[str, Any]:
    """Return how far a run is, and what it last said."""
    lines = folder.lines(run)
    failed = folder.failure(run)
    done = bool(lines) and lines[-1].get("step") == run.steps
    last: dict[str, Any] = {}
    for line in lines:
        last.update(line)
    state = "done" if done else "failed" if failed else "begun" if lines else "waiting"
    return {"state": state, "step": lines[-1]["step"] if lines else 0, "last": last, "failure": failed}


def cost(lines: list[dict[str, Any]]) -> float:
    """Return the CPU-seconds of a run: its clock begins anew each time it is resumed."""
    total, before = 0.0, 0.0
    for line in lines:
        now = float(line.get("time/cpu_seconds", before))
        total += now - before if now >= before else now
        before = now
    return total


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f"{path.name}.partial")
    aside.write_text(text, "utf-8")
    os.replace(aside, path)
