"""The page of one component in a terminal: nothing that one would type is ever cut or broken."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..registry import Component, bounds_of
from .prose import paragraphs, plain
from .sections import in_a_recipe


def print_page(console: Console, c: Component) -> None:
    """Print all that is known of a component."""
    console.print(f"[bold cyan]{c.name}[/]  [dim]{c.kind.name}, from {escape(c.distribution)}[/]", highlight=False)
    for i, (form, text) in enumerate(paragraphs(c.doc)):
        style = {"math": "green", "heading": "bold"}.get(form, "")
        console.print(Padding(Text(text, style=style), (0 if i == 0 else 1, 0, 0, 4 if form == "math" else 0)))
    console.print()
    console.print(_facts(c), highlight=False)
    if c.params.model_fields:
        console.print(_hyperparameters(c))


def _facts(c: Component) -> Table:
    facts = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    for key, text in (
        ("reads", ", ".join(f"{i.name}{' (optional)' if i.optional else ''}" for i in c.inputs) or "nothing"),
        ("gives", c.gives),
        ("in a recipe", in_a_recipe(c)),
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
    return facts


def _hyperparameters(c: Component) -> Table:
    """Return name and default whole, and beside them, by words, what it may be and what it means: five columns would be too narrow."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("hyperparameter", style="cyan", no_wrap=True)
    table.add_column("default", no_wrap=True)
    table.add_column("type and bounds; meaning", overflow="fold")
    for name, kind, bounds, default, said in bounds_of(c.params):
        table.add_row(name, escape(default), escape(", ".join(filter(None, (kind, bounds))) + (f"; {plain(said)}" if said else "")))
    return table
