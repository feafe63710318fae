"""The runs of an ablation, N at a time; what is finished is not repeated, what was begun goes on from its checkpoint."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .folder import AblationFolder, Run, cost, state_of
from .index import Index
from .launching import Handle, Launcher, command

POLL = 0.3
Listener = Callable[[str, Run], None]
"""Is told ``begun``, ``resumed``, ``done`` or ``failed``, and ``""`` now and then while a run goes on."""


def run_all(
    folder: AblationFolder, launcher: Launcher, *, processes: int, listen: Listener, cpu_minutes: float | None = None, retry: bool = False
) -> bool:
    """Run what is left, and return whether everything was tried; False: the budget is spent. An interrupt stops all runs resumably."""
    left = _left(folder, retry)
    going: dict[Run, Handle] = {}
    spent = cpu_seconds(folder)
    try:
        while left or going:
            while left and len(going) < processes and (cpu_minutes is None or spent < 60 * cpu_minutes):
                run = left.pop(0)
                going[run] = _begin(folder, launcher, run, listen)
            if not going:
                return False
            time.sleep(POLL)
            for run in list(going):
                listen("", run)
                if (ended := going[run].ended()) is not None:
                    going.pop(run).stop()
                    _note(folder, run, *ended)
                    spent = cpu_seconds(folder)
                    listen("done" if folder.finished(run) else "failed", run)
    finally:
        for handle in going.values():
            handle.stop()
    return True


def _left(folder: AblationFolder, retry: bool) -> list[Run]:
    left = []
    for run in folder.runs():
        if folder.finished(run):
            continue
        if folder.failure(run) is not None:
            if not retry:
                continue
            folder.note_failure(run, None)
        left.append(run)
    return left


def _begin(folder: AblationFolder, launcher: Launcher, run: Run, listen: Listener) -> Handle:
    path = folder.resumable(run)
    if path is not None:
        words = command("train", "--resume", str(path), "--json")
    else:
        stale = folder.run_path(run)
        if stale is not None:  # it was killed before its first checkpoint: nothing in it can be gone on with
            shutil.rmtree(stale)
        words = command(
            "train", str(folder.recipe(run.slug)), f"train.seed={run.seed}", "train.threads=1", "--out", str(folder.home(run)), "--json"
        )
    handle = launcher.start(f"{run.slug}-seed-{run.seed}", words)
    listen("resumed" if path else "begun", run)
    return handle


def _note(folder: AblationFolder, run: Run, well: bool, said: str) -> None:
    if not folder.finished(run):
        why = said if not well else f"ended well, but not at step {run.steps}; it said: {said}"
        folder.note_failure(run, why)
    with Index(folder.index) as index:
        index.take_in(folder, run)


def cpu_seconds(folder: AblationFolder) -> float:
    """Return what all runs have cost; of a resumed run every piece counts."""
    return sum(cost(folder.lines(run)) for run in folder.runs())


def progress(folder: AblationFolder) -> list[dict[str, Any]]:
    """Return one row for each variant: the state of its runs, the step of those begun, the mean of what was last measured."""
    rows: dict[str, dict[str, Any]] = {}
    for run in folder.runs():
        state = state_of(folder, run)
        row = rows.setdefault(run.variant, {"variant": run.variant, "states": [], "last": []})
        row["states"].append((state["state"], state["step"] / run.steps))
        row["last"].append(state["last"])
    return list(rows.values())


def default_folder(name: str) -> Path:
    """Return where an ablation goes that is told nothing else."""
    return Path("ablations") / name
