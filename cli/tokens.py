"""``lossary explain``: the arithmetic of one token, and a page on which its sequence is coloured by what each token adds."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from ..builtin import catalog
from ..diagnostics.dump import Dump, load_batch
from ..diagnostics.explaining import Explained, TermAt, explain
from ..diagnostics.packing import DumpError
from ..diagnostics.replaying import weighed
from ..registry import LossaryError
from .token_page import page

NAMES = {"sub": "-", "mul": "*", "add": "+", "div": "/"}
WIDE = 30
"""Characters that an operation's inputs get before its result."""


def explain_token(path: Path, token: str, html: Path | None, *, as_json: bool, force: bool) -> None:
    """Print what a dumped step does with one token; with ``html`` also write the page."""
    dump = load_batch(path)
    if not dump.outputs:
        raise DumpError(f"{path} holds no output of a model, so there is no loss to explain.")
    row, place = _place(token)
    if html is not None and html.exists() and not force:
        raise LossaryError(f"{html} is there already; say --force to replace it.")
    objective = dump.objective(catalog())
    batch = weighed(dump, objective)
    found = explain(objective, batch, dump.outputs, row, place)
    if as_json:
        print(json.dumps({**asdict(found), "total": found.total, "ratio": found.ratio}, indent=1))
    else:
        console = Console()
        for line in _lines(path, dump, found):
            console.print(line, highlight=False, soft_wrap=True)
    if html is not None:
        html.write_text(page(path.name, dump, objective, batch, found), "utf-8")
        if not as_json:
            print(f"page: {html}")


def _place(token: str) -> tuple[int, int]:
    row, comma, place = token.partition(",")
    if not comma or not row.strip().isdecimal() or not place.strip().isdecimal():
        raise LossaryError(f"--token {token!r}: say SEQUENCE,TOKEN, both counted from 0, as in --token 3,1.")
    return int(row), int(place)


def _lines(path: Path, dump: Dump, e: Explained) -> Iterator[Text]:
    at = sum(dump.batch.lengths[: e.sequence]) + e.token
    said = f"  {dump.tokens[at]!r}" if dump.tokens else ""
    yield Text.assemble((path.name, "bold"), f"  sequence {e.sequence}, token {e.token} of {e.length}", (said, "cyan"))
    yield Text()
    yield _head("columns", "" if e.group is None else f"group {e.group[0]}, of which {e.group[1]} sequences are here")
    cells = [f"{name:<17}{_n(x)} {unit}" for name, (x, unit) in sorted(e.columns.items())]
    for i in range(0, len(cells), 2):
        yield Text(f"    {cells[i]:<37}{cells[i + 1] if i + 1 < len(cells) else ''}".rstrip())
    if e.log_ratio is not None and e.ratio is not None:
        yield Text()
        yield _head("ratio", "of the policy to the old one")
        gap = f"{_n(e.columns['log_prob'][0])} - ({_n(e.columns['log_prob'][0] - e.log_ratio)}) = {_n(e.log_ratio)} nats"
        yield Text.assemble(f"    {gap:<48}", ("ratio ", "dim"), (_n(e.ratio), "bold"))
    for t in e.terms:
        yield Text()
        yield from _term(t)
    yield Text()
    yield Text.assemble(("  total  ", "bold cyan"), "the token adds ", (_n(e.total), "bold"), " to the loss of the step")


def _term(t: TermAt) -> Iterator[Text]:
    yield _head(t.term, t.component)
    for line in wrap(", ".join(f"{n}={x}" for n, x in t.params.items()), 74, break_long_words=False):
        yield Text(f"    {line}", "dim")
    if not t.seen:
        yield Text("    the token has no weight here: it was dropped, or counts for nothing", "yellow")
        return
    for op in t.operations:
        inputs = f" {NAMES.get(op.name, ',')} ".join(op.inputs) if op.name in NAMES else ", ".join(op.inputs)
        said = inputs if op.name in NAMES else f"{op.name}({inputs})"
        yield Text.assemble(f"    {said:<{WIDE}}", " = ", f"{_n(op.value):<14}", (op.place, "dim"))
    per = "" if t.level == "token" else f" (of the {t.level})"
    parts = [(f"loss{per}", t.loss), ("weight", t.weight), *([("correction", t.correction)] if t.correction is not None else [])]
    parts.append(("coef", t.coefficient))
    wide = [max(len(name), len(_n(x))) for name, x in parts]
    yield Text("    " + "   ".join(f"{name:<{n}}" for (name, _), n in zip(parts, wide, strict=True)) + "   contribution", "dim")
    share = "" if t.share is None else f"   {t.share:.1%} of the term"
    product = " * ".join(f"{_n(x):<{n}}" for (_, x), n in zip(parts, wide, strict=True))
    yield Text.assemble(f"    {product} = ", (_n(t.contribution), "bold"), (share, "dim"))
    for name, slope in t.slopes.items():
        weight = "" if t.effective_weight is None or name != "log_prob" else f"   effective weight {_n(t.effective_weight)}: {t.branch}"
        yield Text.assemble(("    gradient on ", "dim"), f"{name} {_n(slope)}", weight)


def _head(name: str, said: str) -> Text:
    return Text.assemble((f"  {name}", "bold cyan"), ("  " + said if said else "", "dim"))


def _n(x: float) -> str:
    return f"{x + 0.0:.6g}"
