"""``lossary list`` and ``lossary show``."""

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..registry import KINDS, Catalog, Component, LossaryError, UnknownName, bounds_of, listing, nearest
from .finding import found
from .page import print_page
from .prose import plain
from .sections import keys_of, section_of, written


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
        "section": section_of(component),
        "keys": [{"name": k.name, "values": k.may_be, "default": k.default or None} for k in keys_of(component)],
        "inputs": [{"name": i.name, "optional": i.optional} for i in component.inputs],
        "params": params,
        "distribution": component.distribution,
    }


def list_components(kind: str | None, book: Catalog, *, as_json: bool) -> None:
    """Print every component, or those of one kind."""
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


def _tables(chosen: list[Component]) -> None:
    console = Console()
    for kind in dict.fromkeys(c.kind for c in chosen):
        table = Table(
            box=box.SIMPLE_HEAD, title=f"[bold]{kind.name}[/]  [dim]{escape(kind.gives)}[/]", title_justify="left", padding=(0, 1)
        )
        table.add_column("name", style="cyan", no_wrap=True)
        table.add_column("what it does", ratio=1)
        table.add_column("paper", style="dim", max_width=20, overflow="fold")
        for c in (c for c in chosen if c.kind is kind):
            who = "" if c.distribution == "lossary" else f" [dim]({escape(c.distribution)})[/]"  # a column of its own would leave no room
            table.add_row(c.name, escape(plain(c.summary)) + who, c.paper)
        console.print(table)


def show_component(name: str, book: Catalog, *, as_json: bool) -> None:
    """Print all that is known of a name; a name of several kinds shows them all."""
    chosen = _found(name, book)
    if as_json:
        print(json.dumps([{**described(c), "doc": c.doc} for c in chosen], indent=1))
        return
    console = Console()
    for i, c in enumerate(chosen):
        if i:
            console.rule(style="dim")
        print_page(console, c)


def plot_component(name: str, book: Catalog, path: Path, *, force: bool) -> None:
    """Draw the picture of a name; whatever stands in the way is an error before anything is written."""
    from .portrait import portrait_of, save
    from .portrait.draw import check_suffix
    from .portrait.examples import settings_of

    chosen = _found(name, book)
    pictures = [(c, picture) for c in chosen if (picture := portrait_of(c)) is not None]
    if not pictures:
        raise LossaryError(f"{name!r} has no picture: nothing about a {chosen[0].kind.name} like this is a curve.")
    if len(pictures) > 1:
        raise LossaryError(f"{name!r} is several components: say {listing(f'{c.kind.name}/{c.name}' for c, _ in pictures)}.")
    check_suffix(path)
    if os.path.lexists(path) and not force:  # a link that leads nowhere is there too, and writing would follow it
        raise LossaryError(f"{path} is there already; --force replaces it.")
    try:
        component, picture = pictures[0]
        told = "" if picture.caption.startswith("With ") else _settings(settings_of(component))
        alone = replace(picture, caption=picture.caption + told)
        save(alone, path, heading=f"{component.name}  ({component.kind.name.replace('_', ' ')})")
    except OSError as error:
        raise LossaryError(f"{path} cannot be written: {error.strerror or error}.") from error


def _settings(values: dict[str, Any]) -> str:
    return f" Settings: {', '.join(f'{name} {written(value)}' for name, value in values.items())}." if values else ""


def _found(name: str, book: Catalog) -> list[Component]:
    kind, _, bare = name.partition("/")
    if kind.replace("-", "_") in KINDS and bare:
        return [book.get(kind.replace("-", "_"), bare)]
    hyphens = name.replace("_", "-")
    held = [k for k in KINDS if hyphens.rpartition("/")[2] in book.names(k)]
    if not held:
        vendor = hyphens.rpartition("/")[0]
        told = book.skips(vendor) or f"{_meant(book, name)} `lossary find {shlex.quote(name)}` searches everything."
        raise UnknownName(f"No component is called {name!r}.{told}{book.failed()}")
    if len(held) == 1 or "/" not in hyphens:
        return [book.get(k, name) for k in held]
    vendor = hyphens.rpartition("/")[0]  # who may bring the name in some of its kinds only
    return [c for k in held if (c := _of_vendor(book, k, name)) is not None] or [
        book.get(held[0], f"{vendor}/{hyphens.rpartition('/')[2]}")
    ]


def _meant(book: Catalog, name: str) -> str:
    """Return the component that a framework calls so, or else the name that is spelt most like it."""
    told = book.called_elsewhere(name) or [h.component for h in found([name], book) if h.where == "elsewhere"][:1]
    if not told:
        return nearest(name, {n for k in KINDS for n in book.names(k)})
    plain = name.replace("_", "-").lower()
    so = listing(framework for framework, how in told[0].compat.items() if plain in how.replace("_", "-").lower())
    beside = "".join(f", or {c.name!r}" for c in told[1:2])
    return f" Did you mean {told[0].name!r} (so called in {so}){beside}?"


def _of_vendor(book: Catalog, kind: str, name: str) -> Component | None:
    try:
        return book.get(kind, name)
    except UnknownName:
        return None
