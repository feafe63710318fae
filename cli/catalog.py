"""``lossary list`` and ``lossary show``."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..builtin import catalog
from ..registry import KINDS, Catalog, Component, LossaryError, UnknownName, bounds_of, listing, nearest
from .prose import paragraphs, plain


def described(component: Component) -> dict[str, Any]:
    """Return what a machine may read of a component."""
    params = [
        {"name": name, "type": kind, "bounds": bounds, "default": default, "description": said}
        for name, kind, bounds, default, said in bounds_of(component.params)
    ]
    return {
        "kind": component.kind.name,
        "name": component.name,
        "aliases": list(component.aliases),
        "summary": component.summary,
        "paper": component.paper,
        "traits": {
            "scope": component.scope,
            "claims": list(component.claims),
            "suits": dict(component.suits),
            "stateful": component.stateful,
            "compat": dict(component.compat),
        },
        "inputs": [{"name": i.name, "optional": i.optional} for i in component.inputs],
        "params": params,
        "distribution": component.distribution,
    }


def list_components(kind: str | None, *, as_json: bool) -> None:
    """Print every component, or those of one kind."""
    book = catalog()
    if kind is not None and kind.replace("-", "_") not in KINDS:
        raise UnknownName(f"There is no kind {kind!r}.{nearest(kind, KINDS)} Kinds are {listing(KINDS)}.")
    chosen = sorted(
        (c for c in book if kind is None or c.kind.name == kind.replace("-", "_")), key=lambda c: (list(KINDS).index(c.kind.name), c.name)
    )
    if as_json:
        print(json.dumps([described(c) for c in chosen], indent=1))
    elif chosen:
        _tables(chosen)
    else:
        print(f"No {kind} is registered.")
    for f in book.failures:
        print(f"plugin {f.plugin!r} ({f.distribution}) did not load: {f.why}", file=sys.stderr)


def _tables(chosen: list[Component]) -> None:
    console = Console()
    for kind in dict.fromkeys(c.kind for c in chosen):
        table = Table(
            box=box.SIMPLE_HEAD, title=f"[bold]{kind.name}[/]  [dim]{escape(kind.gives)}[/]", title_justify="left", padding=(0, 1)
        )
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what it does", ratio=1)
        table.add_column("paper", style="dim", max_width=20, overflow="fold")
        strangers = any(c.distribution != "lossary" for c in chosen)
        if strangers:
            table.add_column("from", style="dim")
        for c in (c for c in chosen if c.kind is kind):
            table.add_row(c.name, escape(plain(c.summary)), c.paper, *([c.distribution] if strangers else []))
        console.print(table)


def show_component(name: str, *, as_json: bool) -> None:
    """Print all that is known of a name; a name of several kinds shows them all."""
    found = _found(name)
    if as_json:
        print(json.dumps([{**described(c), "doc": c.doc} for c in found], indent=1))
        return
    console = Console()
    for i, c in enumerate(found):
        if i:
            console.rule(style="dim")
        _page(console, c)


def plot_component(name: str, path: Path, *, force: bool) -> None:
    """Draw the picture of a name; whatever stands in the way is an error before anything is written."""
    from .portrait import portrait_of, save
    from .portrait.draw import check_suffix

    found = _found(name)
    pictures = [(c, picture) for c in found if (picture := portrait_of(c)) is not None]
    if not pictures:
        raise LossaryError(f"{name!r} has no picture: nothing about a {found[0].kind.name} like this is a curve.")
    if len(pictures) > 1:
        raise LossaryError(f"{name!r} is several components: say {listing(f'{c.kind.name}/{c.name}' for c, _ in pictures)}.")
    check_suffix(path)
    if os.path.lexists(path) and not force:  # a link that leads nowhere is there too, and writing would follow it
        raise LossaryError(f"{path} is there already; --force replaces it.")
    try:
        save(pictures[0][1], path)
    except OSError as error:
        raise LossaryError(f"{path} cannot be written: {error.strerror or error}.") from error


def _found(name: str) -> list[Component]:
    book = catalog()
    kind, _, bare = name.partition("/")
    if kind.replace("-", "_") in KINDS and bare:
        return [book.get(kind.replace("-", "_"), bare)]
    plain = name.replace("_", "-")
    held = [k for k in KINDS if plain.rpartition("/")[2] in book.names(k)]
    if not held:
        everything = {n for k in KINDS for n in book.names(k)}
        raise UnknownName(f"No component is called {name!r}.{nearest(name, everything) or ' `lossary list` shows all names.'}")
    if len(held) == 1 or "/" not in plain:
        return [book.get(k, name) for k in held]
    vendor = plain.rpartition("/")[0]  # who may bring the name in some of its kinds only
    return [c for k in held if (c := _of_vendor(book, k, name)) is not None] or [book.get(held[0], f"{vendor}/{plain.rpartition('/')[2]}")]


def _of_vendor(book: Catalog, kind: str, name: str) -> Component | None:
    try:
        return book.get(kind, name)
    except UnknownName:
        return None


def _page(console: Console, c: Component) -> None:
    console.print(f"[bold cyan]{c.name}[/]  [dim]{c.kind.name}, from {escape(c.distribution)}[/]", highlight=False)
    for i, (form, text) in enumerate(paragraphs(c.doc)):
        style = {"math": "green", "heading": "bold"}.get(form, "")
        console.print(Padding(Text(text, style=style), (0 if i == 0 else 1, 0, 0, 4 if form == "math" else 0)))
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    for key, text in (
        ("reads", ", ".join(f"{i.name}{' (optional)' if i.optional else ''}" for i in c.inputs) or "nothing"),
        ("gives", c.gives),
        ("scope", c.scope if c.kind.columns else ""),
        ("suits", ", ".join(f"{k}: {v}" for k, v in c.suits.items())),
        ("claims", ", ".join(c.claims)),
        ("aliases", ", ".join(c.aliases)),
        *((framework, how) for framework, how in c.compat.items()),
        ("paper", c.paper),
        ("defined", c.place),
    ):
        if text:
            facts.add_row(key, escape(text))
    console.print()
    console.print(facts, highlight=False)
    rows = list(bounds_of(c.params))
    if rows:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
        for title in ("hyperparameter", "type", "bounds", "default", "meaning"):
            table.add_column(title, style="cyan" if title == "hyperparameter" else "", no_wrap=title == "hyperparameter")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
