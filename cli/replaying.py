"""``lossary replay``: a dumped batch again, and what another recipe makes of it."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..builtin import catalog
from ..diagnostics.dump import Dump, load_batch
from ..diagnostics.packing import DumpError
from ..diagnostics.replaying import Comparison, compare, differences, weighed
from ..diagnostics.running import Result, rerun
from ..pipeline import Objective, load_recipe

KEYS = 6
"""Settings that still fit into the heading."""


def replay(path: Path, overrides: list[str], against: str | None, *, as_json: bool) -> int:
    """Run a file's loss again, or under two recipes. 1 where it does not come out as it was recorded, else 0."""
    dump = load_batch(path)
    if overrides or against is not None:
        before, after = _two(dump, overrides, against)
        told = compare(dump, before, after)
        print(json.dumps(_for_machines(told), indent=1)) if as_json else _show(Console(), path, dump, told, overrides, against)
        return 0
    objective = dump.objective(catalog())
    if not dump.outputs:
        raise DumpError(f"{path} holds no output of a model, so there is no loss to replay.")
    again = rerun(objective, weighed(dump, objective), dump.outputs, dump.generator)
    apart = None if dump.recorded is None else differences(dump.recorded, again)
    changed = dump.changed(objective.plan)
    if as_json:
        print(json.dumps({"loss": float(again.total), "metrics": dict(again.metrics), "differs": apart, "other_code": changed}, indent=1))
    else:
        _again(Console(), path, dump, again, apart, changed)
    return 1 if apart else 0


def _two(dump: Dump, overrides: list[str], against: str | None) -> tuple[Objective, Objective]:
    book = catalog()
    after = dump.read_recipe(overrides) if against is None else load_recipe(against, overrides, more=book.recipes())
    return dump.objective(book), dump.objective(book, after)


def _again(console: Console, path: Path, dump: Dump, again: Result, apart: list[str] | None, changed: list[str]) -> None:
    _heading(console, path, dump)
    console.print(f"  loss {_number(float(again.total))}", highlight=False)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("metric", style="cyan")
    table.add_column("value", justify="right")
    for name, value in again.metrics.items():
        table.add_row(escape(name), _number(value))
    console.print(table)
    if apart is None:
        console.print("  Nothing was recorded with the batch to compare this with.")
    elif apart:
        console.print(f"  [red]Not as recorded:[/] {escape(', '.join(apart))}.", highlight=False)
    else:
        n = len(again.gradients)
        console.print(f"  Bit-equal to what was recorded: the loss, {n} gradient{'s' if n != 1 else ''} and {len(again.metrics)} metrics.")
    if changed:
        console.print(f"  [yellow]Other code than when it was recorded:[/] {escape(', '.join(changed))}.", highlight=False)


def _heading(console: Console, path: Path, dump: Dump) -> None:
    batch = dump.batch
    n, groups = batch.sequences.index.shape[0], len(set(batch.groups))
    said = f"{len(batch)} sequences, {n} tokens" + (f", {groups} groups" if groups else "")
    step = f", step {int(dump.state['step']) + 1}" if dump.state else ""
    console.print(f"[bold]{escape(path.name)}[/]  {said}{step}", highlight=False, soft_wrap=True)
    if dump.note:
        console.print(f"  {dump.note}", markup=False, highlight=False)


def _show(console: Console, path: Path, dump: Dump, told: Comparison, overrides: list[str], against: str | None) -> None:
    _heading(console, path, dump)
    after = ", ".join([*([against] if against else []), *overrides[:KEYS]])
    console.print(f"  before  the file's recipe\n  after   {escape(after)}", highlight=False, soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("term", style="cyan")
    for title in ("before", "after", "|gradient|", "after", "tokens"):
        table.add_column(title, justify="right")
    for t in told.terms:
        cells = (_number(t.before), _number(t.after), _number(t.gradient_before), _number(t.gradient_after))
        table.add_row(escape(t.term), *cells, str(t.tokens) if t.tokens else "same", style="dim" if t.same else "")
    table.add_row("total", _number(float(told.before.total)), _number(float(told.after.total)), "", "", "", style="bold")
    console.print(table)
    gaps = sorted((g for t in told.terms for g in t.gaps), key=lambda g: -abs(g.after - g.before))[:KEYS]
    if gaps:
        console.print("  The tokens that differ most:")
        rows = Table(box=None, padding=(0, 2, 0, 0), show_header=True, header_style="dim")
        for title in ("  token", "text", "term", "before", "after"):
            rows.add_column(title, justify="right" if title in ("before", "after") else "left")
        for g in gaps:
            rows.add_row(f"  {g.sequence},{g.token}", _text(dump, g.sequence, g.token), escape(g.term), _number(g.before), _number(g.after))
        console.print(rows)
    if told.anew == "estimate":
        console.print(f"\n  Both estimated anew. {told.caution}", highlight=False)


def _text(dump: Dump, sequence: int, token: int) -> str:
    return escape(repr(dump.tokens[sum(dump.batch.lengths[:sequence]) + token])) if dump.tokens else ""


def _number(x: float | None) -> str:
    if x is None:
        return "none"
    return f"{x:.6g}" if math.isfinite(x) else str(x)


def _for_machines(told: Comparison) -> dict[str, Any]:
    terms = [{**asdict(t), "same": t.same} for t in told.terms]
    losses = {"before": float(told.before.total), "after": float(told.after.total)}
    metrics = {"before": dict(told.before.metrics), "after": dict(told.after.metrics)}
    return {"loss": losses, "terms": terms, "metrics": metrics, "anew": told.anew, "caution": told.caution}
