"""``lossary ablate``: every variant checked, then a live table while the runs run, and at the end a ranking."""

import json
import os
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any

from rich import box
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from ..ablation.ablation import read_ablation
from ..ablation.comparing import Comparison, compare
from ..ablation.folder import AblationFolder, Run, state_of
from ..ablation.index import rebuild
from ..ablation.launching import Launcher, Local
from ..ablation.running import cpu_seconds, default_folder, progress, run_all
from ..ablation.slurm import Slurm
from ..ablation.variants import Grid, spread
from ..pipeline import scalar
from ..registry import LossaryError

MARKS = {"done": "[green]●[/]", "failed": "[red]✗[/]", "waiting": "[dim]·[/]"}
SPENT = 3
"""The exit code of a budget that is spent."""


def ablate(
    said: str,
    overrides: list[str],
    out: Path | None,
    processes: int | None,
    launcher: str,
    slurm: list[str],
    *,
    dry: bool,
    retry: bool,
    as_json: bool,
) -> int:
    """Run what is left of an ablation, and return the exit code: 1 if a run failed, 3 if the budget is spent."""
    console = Console(stderr=as_json)
    ablation = read_ablation(said)
    grid = spread(ablation, overrides)
    if grid.variables:
        console.print(f"from the environment: {', '.join(grid.variables)}", highlight=False, markup=False, soft_wrap=True)
    for sentence in dict.fromkeys(f"{w} ({v.name})" for v in grid.variants for w in v.warnings):
        console.print(f"[yellow]warning[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    if dry:
        return _dry(console, grid, ablation.seeds, as_json=as_json)
    folder = AblationFolder(out or default_folder(ablation.name))
    with folder.lock() as lock:
        folder.prepare(ablation, grid)
        runner: Launcher = Local(lock) if launcher == "local" else Slurm(folder.path / "slurm", _parameters(slurm))
        n = processes or (max(1, os.cpu_count() or 1) if launcher == "local" else len(folder.runs()))
        rebuild(folder)
        before = signal.signal(signal.SIGTERM, _interrupted)
        try:
            with _Shown(console, folder) as shown:
                whole = run_all(folder, runner, processes=n, listen=shown, cpu_minutes=ablation.budget.cpu_minutes, retry=retry)
        except KeyboardInterrupt:
            console.print(
                f"Stopped; the same command goes on. Everything is in {folder.path}", highlight=False, markup=False, soft_wrap=True
            )
            return 130
        finally:
            signal.signal(signal.SIGTERM, before)
    return _end(console, folder, whole, as_json=as_json)


def _end(console: Console, folder: AblationFolder, whole: bool, *, as_json: bool) -> int:
    compared = compare(folder)
    failed = [run for run in folder.runs() if folder.failure(run) is not None]
    if as_json:
        told = {"folder": str(folder.path), "whole": whole, "failed": [f"{r.slug} seed {r.seed}" for r in failed]}
        print(json.dumps({**told, "cpu_seconds": round(cpu_seconds(folder), 1), **compared.for_machines()}))
    else:
        print_comparison(console, compared)
        for run in failed:
            why = (folder.failure(run) or "").strip().splitlines() or [""]
            console.print(f"failed: {run.variant}, seed {run.seed}: {why[-1]}", highlight=False, markup=False, soft_wrap=True)
        if not whole:
            console.print(
                "The budget of cpu_minutes is spent; raise it and run the same command to go on.", highlight=False, soft_wrap=True
            )
        console.print(
            f"{round(cpu_seconds(folder))} CPU-seconds. A page of it: lossary report {folder.path}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return SPENT if not whole else 1 if failed else 0


def print_comparison(console: Console, compared: Comparison) -> None:
    """Print the ranking, and what may be said of it."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=None)
    table.add_column("variant", style="cyan", overflow="fold")
    for title in (compared.metric, "95 %", "P(better)", "runs"):
        table.add_column(title, justify="right", no_wrap=True)
    for s in compared.standings:
        name = f"{s.name} (base)" if s.name == compared.base else s.name
        better = "" if s.better is None else f"{s.better[0]:.2f}"
        table.add_row(escape(name), f"{s.score[0]:.3f}", f"{s.score[1]:.3f} to {s.score[2]:.3f}", better, str(s.runs))
    console.print(table)
    for sentence in (*compared.sentences, *compared.cautions):
        console.print(sentence, highlight=False, markup=False)


def _dry(console: Console, grid: Grid, seeds: list[int], *, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"variants": [{"name": v.name, "changes": v.changes, "steps": v.steps} for v in grid.variants], "seeds": seeds}))
        return 0
    for v in grid.variants:
        base = "  (base)" if v.contestant == grid.base else ""
        console.print(f"{v.name}{base}", highlight=False, markup=False)
    console.print(
        f"{len(grid.variants)} variants, {len(seeds)} seeds, {len(grid.variants) * len(seeds)} runs; all recipes are right.",
        highlight=False,
    )
    return 0


def _parameters(said: list[str]) -> dict[str, Any]:
    """Return submitit's parameters as they were said: ``timeout_min=60``, ``slurm_partition=gpu``."""
    made = {}
    for text in said:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise LossaryError(f"--slurm {text!r}: a parameter of submitit reads key=value, as slurm_partition=gpu or timeout_min=60.")
        made[key] = scalar(value)
    return made


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


class _Shown:
    """A live table on a terminal; elsewhere a line for each thing that happens."""

    def __init__(self, console: Console, folder: AblationFolder) -> None:
        self.console, self.folder, self.last = console, folder, 0.0
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        self.total = len(folder.runs())

    def __enter__(self) -> "_Shown":
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, what: str, run: Run) -> None:
        if self.live is not None:
            if what or time.monotonic() - self.last > 1:
                self.last = time.monotonic()
                self.live.update(self._table(), refresh=True)
            return
        if what:
            state = state_of(self.folder, run)
            score = state["last"].get(self.folder.plan()["score"])
            told = f"  {score:.3f}" if what == "done" and isinstance(score, int | float) else ""
            ended = sum(self.folder.finished(r) or self.folder.failure(r) is not None for r in self.folder.runs())
            self.console.print(
                f"{what:<8}{ended:>4}/{self.total}  {run.variant}, seed {run.seed}{told}", highlight=False, markup=False, soft_wrap=True
            )

    def _table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
        table.add_column("variant", style="cyan", overflow="fold")
        metric = self.folder.plan()["score"]
        for title in ("seeds", "reward", metric):
            table.add_column(title, justify="left" if title == "seeds" else "right", no_wrap=True)
        for row in progress(self.folder):
            marks = " ".join(MARKS.get(state, f"{part:.0%}") for state, part in row["states"])
            table.add_row(escape(row["variant"]), marks, _mean(row["last"], "reward"), _mean(row["last"], metric))
        return table


def _mean(lines: list[dict[str, Any]], name: str) -> str:
    found = [line[name] for line in lines if isinstance(line.get(name), int | float)]
    return f"{sum(found) / len(found):.3f}" if found else ""
