"""``lossary import-config`` and ``lossary export``."""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import yaml
from rich.console import Console
from rich.text import Text

from ..integrations.configs.exporting import export as exported
from ..integrations.configs.importing import import_file
from ..integrations.configs.mapping import APPROXIMATED, DROPPED, Row
from ..registry import LossaryError
from .sections import written

STYLE = {APPROXIMATED: "yellow", DROPPED: "dim"}


def import_config(framework: str, path: Path, out: Path | None, *, strict: bool, as_json: bool) -> int:
    """Print or write the recipe and the table of keys; return 1 if ``strict`` and anything is approximated."""
    found = import_file(framework, path)
    failed = strict and bool(found.approximations)
    text = yaml.safe_dump(found.recipe, sort_keys=False)
    if out is not None and not failed:
        if out.exists():
            raise LossaryError(f"{out} is there already; it is not overwritten.")
        out.write_text(text, "utf-8")
    if as_json:
        print(json.dumps({"recipe": found.recipe, "keys": [asdict(r) for r in found.rows]}, indent=1, default=str))
        return int(failed)
    if out is None and not failed:
        print(text)
    console = Console(stderr=out is None)
    for row in found.rows:
        _print(console, row)
    counts = {fate: sum(r.fate == fate for r in found.rows) for fate in ("mapped", APPROXIMATED, DROPPED)}
    console.print(
        ", ".join(f"{n} {fate}" for fate, n in counts.items()) + (f"; written to {out}" if out and not failed else ""), highlight=False
    )
    if failed:
        print("lossary: --strict: what is approximated must be said by hand.", file=sys.stderr)
    return int(failed)


def _print(console: Console, row: Row) -> None:
    where = f" -> {row.here}" if row.here else ""
    console.print(Text(f"{row.fate:13}{row.key} = {written(row.value)}{where}", style=STYLE.get(row.fate, "")), soft_wrap=True)
    if row.reason:
        console.print(Text(f"{'':13}{row.reason}", style="dim"), soft_wrap=True)


def export(framework: str, recipe: str, *, as_json: bool) -> None:
    """Print the settings: verl's as overrides, TRL's as fields of ``GRPOConfig``."""
    made = exported(framework, recipe)
    if as_json:
        print(json.dumps(asdict(made), indent=1))
        return
    for name, value in made.environment.items():
        print(f"export {name}={value}")
    for name, value in made.settings.items():
        print(f"{name}={value}" if framework == "verl" else f"{name}: {written(value)}")
    for note in made.notes:
        print(f"note: {note}", file=sys.stderr)
