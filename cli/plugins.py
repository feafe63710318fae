"""``lossary plugins``, and what ``--with`` and ``--no-plugins`` mean for the commands that read a catalog."""

import json
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..builtin import catalog
from ..pipeline import bundled_recipes, load_recipe
from ..registry import KINDS, Catalog, Fault, PluginError, PluginWarning, RecipeError

STYLES = {"loaded": "green", "failed": "bold red", "blocked": "yellow", "not asked for": "dim"}


@dataclass(frozen=True)
class _Row:
    """One installed plugin."""

    name: str
    distribution: str
    state: str
    cause: str = ""
    traceback: str = ""
    brings: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    recipes: tuple[str, ...] = ()


def list_plugins(*, as_json: bool, verbose: bool) -> int:
    """Print every installed plugin with its state; return 1 if one of them failed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PluginWarning)  # the table says it all
        book = catalog()
    rows = _rows(book)
    if as_json:
        print(json.dumps([_read_by_machines(row) for row in rows], indent=1))
    else:
        _table(rows)
        if verbose:
            for row in (r for r in rows if r.traceback):
                print(f"\n{row.name} ({row.distribution})\n{row.traceback.rstrip()}")
    for note in book.notes:
        print(f"lossary: {note}", file=sys.stderr)
    return 1 if book.failures else 0


def _rows(book: Catalog) -> list[_Row]:
    rows = [
        _Row(p.name, p.distribution, "loaded", brings=p.components, columns=p.columns, recipes=p.recipes)
        for p in book.plugins
        if p.distribution != "lossary"
    ]
    rows += [_Row(f.plugin, f.distribution, "failed", f.why, f.traceback) for f in book.failures]
    rows += [_Row(s.plugin, s.distribution, s.state, s.why) for s in book.skipped]
    return sorted(rows, key=lambda r: (r.distribution, r.name))


def _read_by_machines(row: _Row) -> dict[str, Any]:
    name, _, version = row.distribution.partition(" ")
    return {
        "name": row.name,
        "distribution": name,
        "version": version or None,
        "state": row.state.replace(" ", "-"),
        "cause": row.cause or None,
        "components": list(row.brings),
        "columns": list(row.columns),
        "recipes": list(row.recipes),
        "traceback": row.traceback or None,
    }


def _table(rows: list[_Row]) -> None:
    console = Console()
    if not rows:
        console.print("No plugin is installed; `lossary new-plugin NAME` writes one.", highlight=False)
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0))
    table.add_column("plugin", style="cyan", max_width=22, overflow="fold")
    table.add_column("from", max_width=22, overflow="fold")
    table.add_column("state", no_wrap=True)
    table.add_column("brings", ratio=1, overflow="fold")
    for row in rows:
        says = escape(row.cause or _brings(row))
        table.add_row(escape(row.name), escape(row.distribution), f"[{STYLES[row.state]}]{row.state}[/]", says)
    console.print(table)
    counts = Counter(r.state for r in rows)
    said = ", ".join(f"{n} {state}" for state in STYLES if (n := counts[state]))
    more = " `lossary plugins -v` shows tracebacks." if counts["failed"] else ""
    console.print(f"{said}.{more}", highlight=False, soft_wrap=True, markup=False)


def _brings(row: _Row) -> str:
    """Say what a plugin brings, kind by kind: long lists stay readable at 80 columns."""
    by: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for name in row.brings:
        kind, _, bare = name.partition("/")
        by[kind].append(bare)
    parts = [f"{kind}: {', '.join(names)}" for kind, names in by.items() if names]
    parts += [f"columns: {', '.join(row.columns)}"] if row.columns else []
    parts += [f"recipes: {', '.join(row.recipes)}"] if row.recipes else []
    return "\n".join(parts) or "hooks only"


def book_with(sources: Iterable[str] | None) -> Catalog:
    """Return the catalog with what ``--with`` names: a ``.py`` file, a module, or the plugins of a recipe."""
    book = catalog()
    for source in sources or ():
        if source.endswith(".py"):
            book = book.with_plugin(Path(source).name, Path(source).parent)
        elif source.endswith((".yaml", ".yml")) or source in bundled_recipes():
            book = _of_recipe(source, book)
        else:
            book = book.with_plugin(source, Path.cwd())
    return book


def _of_recipe(source: str, book: Catalog) -> Catalog:
    recipe = load_recipe(source, more=book.recipes())
    names, faults = recipe.values.get("plugins") or (), list(recipe.document.faults)
    for i, name in enumerate(names if isinstance(names, list) else ()):
        try:
            book = book.with_plugin(str(name), recipe.folder)
        except PluginError as error:
            faults.append(Fault(f"plugins.{i}", recipe.document.place(("plugins", i)), str(error)))
    if faults:
        raise RecipeError(faults)
    return book
