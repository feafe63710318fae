"""``lossary train``: a live line while it runs, a table of every component at the end."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ..builtin import catalog
from ..pipeline import load_recipe
from ..trainer.checkpoint import newest
from ..trainer.failures import Terminated
from ..trainer.loop import Trainer
from ..trainer.ranks import Group, joined
from ..trainer.run_folder import RunFolder
from ..trainer.settings import Settings
from .measured import of_strangers

ROWS = (
    ("policy loss", "actor/pg_loss"), ("kl loss", "actor/kl_loss"), ("entropy loss", "actor/entropy_loss"), ("sft loss", "actor/sft_loss"),
    ("value loss", "critic/vf_loss"), ("total (actor)", "actor/loss"), ("total (critic)", "critic/loss"), ("entropy", "actor/entropy"),
    ("clip fraction", "actor/pg_clipfrac"), ("ppo_kl", "actor/ppo_kl"), ("kl in reward", "critic/reward_kl"), ("kl coefficient", "critic/kl_coef"),
    ("gradient norm", "actor/grad_norm"), ("response length", "response_length/mean"), ("reward", "reward"), ("held-out accuracy", "eval/accuracy"),
)  # fmt: skip
LAST = 5
WASTE = 0.3
MOST = 6
"""Metrics of somebody's own components that still fit below the others."""


def train_recipe(said: str | None, overrides: list[str], out: Path, resume: Path | None, *, as_json: bool) -> None:
    """Run, show progress, and end with a table (or one JSON line); of several ranks only the first speaks and makes the folder."""
    with joined():
        _train_recipe(said, overrides, out, resume, Group(), as_json=as_json)


def _train_recipe(said: str | None, overrides: list[str], out: Path, resume: Path | None, group: Group, *, as_json: bool) -> None:
    console = Console(stderr=as_json, quiet=not group.first)
    folder = RunFolder(Path(group.agreed(lambda: str(RunFolder.existing(resume).path)))) if resume is not None else None
    recipe = load_recipe(str(folder.recipe) if folder else str(said), overrides, environment=True, more=catalog().recipes())
    settings = Settings.of(recipe)
    if recipe.variables:
        console.print(f"from the environment: {', '.join(recipe.variables)}", highlight=False, markup=False, soft_wrap=True)
    for sentence in settings.plan.warnings:
        console.print(f"[yellow]warning[/] {escape(sentence)}", highlight=False)
    began = time.process_time()
    folder = folder or RunFolder(Path(group.agreed(lambda: str(RunFolder.new(out, recipe.name, recipe.text(), recipe.code()).path))))
    with _Live(console, settings) as live:
        trainer = Trainer(settings, folder, live)
        if resume is not None:
            _take_up(console, trainer, folder, recipe.text() if overrides or recipe.variables else None)
            live.position(trainer.step)
        try:
            lines = trainer.run()
        except (KeyboardInterrupt, Terminated) as stopped:
            live.__exit__()
            go_on = f" Go on with: lossary train --resume {folder.path}" if newest(folder.path) else ""
            console.print(
                f"Stopped after step {trainer.step} of {settings.train.steps}.{go_on}", highlight=False, soft_wrap=True, markup=False
            )
            raise SystemExit(143 if isinstance(stopped, Terminated) else 130) from None
    if not group.first:
        return
    told = summary(lines, folder.path, time.process_time() - began)
    if as_json:
        print(json.dumps(told))
    else:
        _report(console, lines, told)


def _take_up(console: Console, trainer: Trainer, folder: RunFolder, changed: str | None) -> None:
    """Resume, say from where, and write down overrides: a run's recipe.yaml always says what it does."""
    for sentence in trainer.resume():
        console.print(f"[yellow]warning[/] {escape(sentence)}; the run may go on differently.", highlight=False, soft_wrap=True)
    steps = trainer.settings.train.steps
    left = f"going on to step {steps}" if trainer.step < steps else f"nothing is left to do, since train.steps is {steps}"
    console.print(f"{folder.path}: {trainer.step} steps were taken; {left}.", highlight=False, soft_wrap=True, markup=False)
    if changed is not None:
        trainer.save(changed)


def summary(lines: list[dict[str, Any]], run: Path, cpu_seconds: float) -> dict[str, Any]:
    """Return what the last line of ``--json`` says: the reward of the first step and the mean of the last five, and so on."""
    rewards = [line["reward"] for line in lines if "reward" in line]
    scores = [line["eval/accuracy"] for line in lines if "eval/accuracy" in line]
    return {
        "reward_first": rewards[0] if rewards else None,
        "reward_last": sum(rewards[-LAST:]) / len(rewards[-LAST:]) if rewards else None,
        "accuracy_first": scores[0] if scores else None,
        "accuracy_last": scores[-1] if scores else None,
        "steps": lines[-1]["step"] if lines else 0,
        "cpu_seconds": round(cpu_seconds, 1),
        "run": str(run),
    }


def padding(lines: list[dict[str, Any]]) -> str:
    """Return a sentence where more than ``WASTE`` of what the model read was padding, in the mean of the steps; else nothing."""
    shares = [line["perf/padding_share"] for line in lines if "perf/padding_share" in line]
    mean = sum(shares) / len(shares) if shares else 0.0
    if mean <= WASTE:
        return ""
    return f"{mean:.0%} of what the model read was padding: prompts or responses differ much in length.".replace("%", " %", 1)


class _Live:
    """Progress on a terminal; one line per evaluation elsewhere."""

    def __init__(self, console: Console, settings: Settings) -> None:
        self.console, self.settings, self.reward, self.score = console, settings, "", ""
        self.warnings = 0
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
        )
        self.progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.warm = self.progress.add_task("warm-up", total=settings.warm_up.steps, visible=settings.warm_up.steps > 0, said="")
        self.main = self.progress.add_task("training", total=settings.train.steps, said="")

    def __enter__(self) -> "_Live":
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def position(self, step: int) -> None:
        """Begin in the middle, as a resumed run does."""
        self.progress.update(self.warm, visible=False)
        self.progress.update(self.main, completed=step)

    def __call__(self, line: Mapping[str, Any]) -> None:
        if "warning" in line:
            self.warnings += 1
            text = f"[yellow]warning[/] step {line['step']}, {line['warning']}: {escape(line['found'])}"
            self.console.print(text, highlight=False)
            return
        if "warm_up" in line:
            self.progress.update(self.warm, completed=line["warm_up"], said=f"loss {line['loss']:.3f}")
            return
        self.reward = f"reward {line['reward']:.3f}  " if "reward" in line else self.reward
        self.score = f"accuracy {line['eval/accuracy']:.3f}" if "eval/accuracy" in line else self.score
        self.progress.update(self.main, completed=line["step"], said=f"{self.reward}{self.score}")
        if "eval/accuracy" in line and not self.console.is_terminal:
            self.console.print(f"step {line['step']:>5}/{self.settings.train.steps}  {self.reward}{self.score}", highlight=False)


def _report(console: Console, lines: list[dict[str, Any]], told: Mapping[str, Any]) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("component", style="cyan")
    for title in ("first", "", "last"):
        table.add_column(title, justify="right")
    for name, key in ROWS:
        found = [line[key] for line in lines if key in line]
        if found:
            last = told["reward_last"] if key == "reward" else found[-1]
            table.add_row(name, f"{found[0]:.4f}", "→", f"{last:.4f}", style="bold" if key in ("reward", "eval/accuracy") else "")
    own = of_strangers(key for line in lines for key, value in line.items() if isinstance(value, (int, float)))
    for i, key in enumerate(own[:MOST]):
        found = [line[key] for line in lines if key in line]
        table.add_section() if not i else None
        table.add_row(key, f"{found[0]:.4f}", "→", f"{found[-1]:.4f}")
    if own:
        beside = f", and {len(own) - MOST} more" if len(own) > MOST else ""
        table.caption, table.caption_justify = f"below the line: reported by your components{beside}", "left"
    console.print(table)
    if wasted := padding(lines):
        console.print(f"[yellow]note[/] {wasted}", highlight=False, soft_wrap=True)
    rewards = min(LAST, sum("reward" in line for line in lines))
    mean = f"; the last reward is the mean of {rewards} steps" if rewards > 1 else ""
    done = f"{told['steps']} steps, {told['cpu_seconds']} CPU-seconds{mean}."
    console.print(f"{done} Everything is in {told['run']}/metrics.jsonl", highlight=False, soft_wrap=True, markup=False)
