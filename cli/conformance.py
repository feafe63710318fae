"""``lossary conformance``."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ..builtin import catalog
from ..conformance import Broken, Check, NotExamined, checks_for
from ..registry import FIELDS, KINDS, Catalog, Component, LossaryError, PluginError, UnknownName, nearest
from ..registry.claims import CLAIMS

_STYLE = {"kept": "green", "deviates": "yellow", "broken": "bold red", "not seen": "dim", "not claimed": "dim"}


@dataclass(frozen=True)
class _Seen:
    """What came of one check, or that a claim is not made and nobody looked."""

    name: str
    claim: str
    outcome: str
    message: str = ""


def conform(target: str, *, compile: bool, examples: int, as_json: bool) -> int:
    """Run every check of what a target names; print what came of them and return 1 if a promise is broken."""
    book, chosen = _named(target)
    columns = [c for name, c in book.fields.columns.items() if FIELDS.get(name) != c]
    console = Console()
    found: list[tuple[Component, list[_Seen]]] = []
    with Console(stderr=True).status("") as status:
        for component in chosen:
            status.update(escape(f"{component.kind.name}/{component.name}"))
            checks = checks_for(component, columns=columns, compile=compile, examples=examples)
            found.append((component, [*map(_seen, checks), *_not_claimed(component)]))
    if as_json:
        print(json.dumps([_described(component, seen) for component, seen in found], indent=1))
    elif len(found) == 1:
        _page(console, *found[0])
    else:
        _table(console, found)
    return int(any(s.outcome in ("broken", "not seen") for _, seen in found for s in seen))


def _seen(check: Check) -> _Seen:
    try:
        check()
    except NotExamined as error:
        return _Seen(check.name, check.claim, "not seen", str(error))
    except Broken as error:
        return _Seen(check.name, check.claim, "broken", str(error))
    return _Seen(check.name, check.claim, "deviates" if check.deviation else "kept", check.deviation)


def _not_claimed(c: Component) -> list[_Seen]:
    """Return what its kind may claim and it does not."""
    return [_Seen(name, says, "not claimed") for name, (kinds, says) in CLAIMS.items() if c.kind.name in kinds and name not in c.claims]


# ── what is meant ────────────────────────────────────────────────────────────────────────────────────────────────────


def _named(target: str) -> tuple[Catalog, list[Component]]:
    """Return the components of a file, of a name, of a distribution or plugin, or of a module; and the catalog that knows their words."""
    book = catalog()
    path = Path(target)
    if path.suffix == ".py":
        return _brought(book, path.name, path.absolute().parent)
    if by_name := _by_name(book, target):
        return book, by_name
    plain = target.replace("_", "-")
    failed = [f for f in book.failures if plain in (f.plugin.replace("_", "-"), f.distribution.partition(" ")[0].replace("_", "-"))]
    if failed:
        raise PluginError(f"plugin {failed[0].plugin!r} ({failed[0].distribution}) did not load: {failed[0].why}")
    vendors = {c.distribution.partition(" ")[0].replace("_", "-"): c.distribution for c in book}
    vendors |= {p.name.replace("_", "-"): p.distribution for p in book.plugins if p.distribution != "lossary"}
    if plain in vendors:
        return book, [c for c in book if c.distribution == vendors[plain]]
    try:
        return _brought(book, target, Path.cwd())
    except PluginError as error:
        if error.__cause__ is not None and not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        known = {*vendors, *(name for kind in KINDS for name in book.names(kind))}
        raise UnknownName(
            f"{target!r} is no component, and no package or module that brings one.{nearest(target, known)} A file is named with its .py."
        ) from error


def _by_name(book: Catalog, target: str) -> list[Component]:
    kind, _, bare = target.partition("/")
    if kind.replace("-", "_") in KINDS and bare:
        return [book.get(kind.replace("-", "_"), bare)]
    last = target.replace("_", "-").rpartition("/")[2]
    found = []
    for k in KINDS:
        if last in book.names(k):
            try:
                found.append(book.get(k, target))
            except UnknownName:
                if "/" not in target:  # two distributions have it, and the error says so
                    raise
    return found


def _brought(book: Catalog, plugin: str, folder: Path) -> tuple[Catalog, list[Component]]:
    before = {id(c.function) for c in book}
    grown = book.with_plugin(plugin, folder)
    chosen = [c for c in grown if id(c.function) not in before]
    if not chosen:
        raise LossaryError(f"{plugin!r} defines no component.")
    return grown, chosen


# ── how it is told ───────────────────────────────────────────────────────────────────────────────────────────────────


def _page(console: Console, component: Component, seen: list[_Seen]) -> None:
    """Print every check of one component with its sentence."""
    _head(console, component)
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for s in seen:
        sentence = f"{s.claim} Declared not to hold: {s.message}" if s.outcome == "deviates" else s.claim
        table.add_row(Text(s.outcome, style=_STYLE[s.outcome]), s.name, escape(sentence))
    console.print(table, highlight=False)
    _spelt_out(console, seen)
    _sum(console, [(component, seen)])


def _table(console: Console, found: list[tuple[Component, list[_Seen]]]) -> None:
    """Print one row for each component: how many checks it keeps, how many claims it does not make, and by name what it does not keep."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("component", style="cyan", no_wrap=True)
    table.add_column("kept", justify="right", no_wrap=True)
    table.add_column("open", justify="right", no_wrap=True)
    table.add_column("otherwise", overflow="fold")
    for component, seen in found:
        kept, open_claims = (str(sum(s.outcome == o for s in seen)) for o in ("kept", "not claimed"))
        table.add_row(f"{component.kind.name}/{component.name}", kept, open_claims, _otherwise(seen))
    console.print(table, highlight=False)
    for _, seen in found:
        _spelt_out(console, seen)
    _sum(console, found)


def _otherwise(seen: list[_Seen]) -> Text:
    line = Text()
    for outcome in ("broken", "not seen", "deviates"):
        names = [s.name + (f" ({s.message.rstrip('.')})" if outcome == "deviates" else "") for s in seen if s.outcome == outcome]
        if names:
            line.append("; " if line else "").append(outcome, style=_STYLE[outcome]).append(f": {', '.join(names)}")
    return line


def _head(console: Console, c: Component) -> None:
    console.print(
        f"[bold cyan]{c.name}[/]  [dim]{c.kind.name}, {escape(c.place)}, from {escape(c.distribution or 'nowhere')}[/]", highlight=False
    )


def _spelt_out(console: Console, seen: Iterable[_Seen]) -> None:
    for s in seen:
        if s.outcome == "broken":
            console.print()
            for line in s.message.splitlines():
                wrapped = wrap(line, console.width, subsequent_indent=" " * 15, break_long_words=False, break_on_hyphens=False)
                console.print("\n".join(wrapped or [""]), markup=False, highlight=False, soft_wrap=True)


def _sum(console: Console, found: list[tuple[Component, list[_Seen]]]) -> None:
    counts = {outcome: sum(s.outcome == outcome for _, seen in found for s in seen) for outcome in _STYLE}
    unclaimed = counts.pop("not claimed")
    said = ", ".join(f"{n} {outcome}" for outcome, n in counts.items() if n or outcome == "kept")
    console.print()
    console.print(f"{sum(counts.values())} checks: {said}" + (f"; {unclaimed} not claimed" if unclaimed else ""), highlight=False)


def _described(c: Component, seen: list[_Seen]) -> dict[str, Any]:
    return {
        "kind": c.kind.name,
        "name": c.name,
        "place": c.place,
        "distribution": c.distribution,
        "checks": [{"name": s.name, "claim": s.claim, "outcome": s.outcome.replace(" ", "-"), "message": s.message or None} for s in seen],
    }
