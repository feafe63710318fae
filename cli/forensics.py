"""``lossary forensics``: which term a dumped step's gradient comes from, and what was left of each token's advantage."""

import json
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..builtin import catalog
from ..diagnostics.dump import load_batch
from ..diagnostics.forensics import Forensics, Gram, forensics
from ..diagnostics.packing import DumpError
from ..diagnostics.replaying import weighed
from ..diagnostics.weights import Buckets, Spread

BY = (("sign", "advantage"), ("position", "position"), ("length", "length"))


def show_forensics(path: Path, *, as_json: bool) -> None:
    """Print the shares of the terms and the effective weights of the tokens."""
    dump = load_batch(path)
    if not dump.outputs:
        raise DumpError(f"{path} holds no output of a model, so there is no gradient to look into.")
    objective = dump.objective(catalog())
    found = forensics(objective, weighed(dump, objective), dump.outputs)
    if as_json:
        print(json.dumps(for_machines(found), indent=1))
        return
    console = Console()
    console.print(f"[bold]{escape(path.name)}[/]", highlight=False, soft_wrap=True)
    for column, gram in found.columns.items():
        if gram.total_norm:
            _terms(console, column, gram)
    if found.weights is not None and found.weights.all is not None:
        _weights(console, found.weights)


def for_machines(found: Forensics) -> dict[str, Any]:
    """Return everything by name."""
    weights = found.weights
    told = {} if weights is None or weights.all is None else {
        "all": _spread(weights.all), **{f"by_{by}": {name: _spread(s) for name, s in weights.rows(by)} for by, _ in BY}
    }  # fmt: skip
    return {"gradients": {column: _gram(gram) for column, gram in found.columns.items()}, "effective_weight": told}


def _gram(gram: Gram) -> dict[str, Any]:
    terms = {
        n: {"role": role, "share": gram.share(n), "norm": gram.norm(n), "cosine": {m: gram.cosine(n, m) for m in gram.names if m != n}}
        for n, role in zip(gram.names, gram.roles, strict=True)
    }
    return {"norm": gram.total_norm, "numbers": gram.size, "terms": terms}


def _spread(s: Spread) -> dict[str, float]:
    return {"tokens": s.count, "mean": s.mean, "ess": s.ess, "zeroed": s.zeroed_share, "flipped": s.flipped_share}


def _terms(console: Console, column: str, gram: Gram) -> None:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=f"gradient on {column}", title_justify="left", title_style="bold")
    live = [n for n in gram.names if gram.norm(n)]
    table.add_column("term", style="cyan")
    for title in ("share", "norm", *(f"cos {n}" for n in live[:3] if len(live) > 1)):
        table.add_column(title, justify="right")
    for name in live:
        cosines = [_number(gram.cosine(name, m), "+.2f") for m in live[:3] if len(live) > 1]
        table.add_row(escape(name), _number(gram.share(name), ".1%"), _number(gram.norm(name), ".3g"), *cosines)
    console.print(table)


def _weights(console: Console, weights: Buckets) -> None:
    title = "effective weight, over tokens with an advantage"
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 2, 0, 0), title=title, title_justify="left", title_style="bold")
    table.add_column("by", style="dim")
    table.add_column("", style="cyan")
    for head in ("tokens", "mean", "ESS", "zeroed", "flipped"):
        table.add_column(head, justify="right")
    assert weights.all is not None
    for by, said, rows in (("", "all", [("", weights.all)]), *((said, "", list(weights.rows(by))) for by, said in BY)):
        for i, (name, s) in enumerate(rows):
            cells = (f"{s.count:.0f}", f"{s.mean:.3f}", f"{s.ess:.1%}", f"{s.zeroed_share:.1%}", f"{s.flipped_share:.1%}")
            table.add_row(by if i == 0 else "", name or said, *cells)
    console.print(table)


def _number(x: float | None, how: str) -> str:
    return "none" if x is None else format(x, how)
