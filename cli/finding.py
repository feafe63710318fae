"""``lossary find``: which component is meant by a word, whoever uses it."""

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from ..registry import KINDS, Catalog, Component, bounds_of, nearest
from .prose import plain

MOST = 20
_WHERE = ("alias", "name", "elsewhere", "hyperparameter", "text")
"""Where a word may stand, the best place first."""


@dataclass(frozen=True)
class Hit:
    """A component, and the piece of text in which the words stand."""

    component: Component
    where: str
    text: str
    rank: tuple[int, ...]

    @property
    def name(self) -> str:
        """How ``lossary show`` finds it."""
        return f"{self.component.kind.name}/{self.component.name}"


def find(words: list[str], book: Catalog, *, as_json: bool) -> int:
    """Print what is found, best first, and return 0; with nothing to print return 1."""
    hits = found([w for said in words for w in said.split()], book)
    if as_json:
        print(json.dumps([{"kind": h.component.kind.name, "name": h.component.name, "where": h.where, "text": h.text} for h in hits]))
        return 0 if hits else 1
    if not hits:
        names = {n for k in KINDS for n in book.names(k)}
        print(f"Nothing speaks of {' '.join(words)!r}.{nearest('-'.join(words), names)}", file=sys.stderr)
        return 1
    console = Console()
    wide = max(len(h.name) for h in hits[:MOST])
    for h in hits[:MOST]:
        line = Text(f"{h.name:{wide}}  ", style="cyan")
        line.append(_excerpt(h, words, max(console.width - wide - 2, 24), marks=not console.is_terminal))
        console.print(line, soft_wrap=True)
    if len(hits) > MOST:
        print(f"... and {len(hits) - MOST} more; another word makes it fewer.")
    return 0


def found(words: list[str], components: Iterable[Component]) -> list[Hit]:
    """Return the components of which some text has every word; ``-`` and ``_`` are the same, a part of a word counts."""
    asked = [_plain(w) for w in words]
    hits = [hit for c in components if (hit := _hit(c, asked)) is not None]
    order = list(KINDS)
    return sorted(hits, key=lambda h: (h.rank, order.index(h.component.kind.name), h.component.name))


def _hit(c: Component, asked: list[str]) -> Hit | None:
    texts = [(where, text, _plain(text)) for where, text in _texts(c)]
    if not asked or not all(any(word in said for _, _, said in texts) for word in asked):
        return None
    ranked = []
    for where, text, said in texts:
        has = sum(word in said for word in asked)
        if has:
            whole = sum(bool(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", said)) for word in asked)
            exact = said == "-".join(asked)
            ranked.append(((len(asked) - has, 0 if exact else 1, _WHERE.index(where), len(asked) - whole, len(text)), where, text))
    rank, where, text = min(ranked)
    return Hit(c, where, text, rank[:4])


def _texts(c: Component) -> Iterator[tuple[str, str]]:
    yield from (("alias", alias) for alias in c.aliases)
    yield "name", c.name
    yield from (("elsewhere", f"{framework}: {how}") for framework, how in c.compat.items())
    for name, _, _, _, said in bounds_of(c.params):
        yield "hyperparameter", f"{name}: {plain(said)}" if said else name
    yield "text", plain(c.summary)
    if c.paper:
        yield "text", c.paper


def _plain(text: str) -> str:
    return text.replace("_", "-").lower()


def _excerpt(hit: Hit, words: list[str], room: int, *, marks: bool) -> Text:
    """Return the words and what stands around them, as much as one line holds; ``marks``: between asterisks, where nothing can be bold."""
    text = " ".join(hit.text.split())
    head, text = {"alias": ("alias ", text), "name": ("", f"{text}: {plain(hit.component.summary)}")}.get(hit.where, ("", text))
    if hit.where == "elsewhere":  # whose word it is stays in sight
        framework, _, text = text.partition(" ")
        head = f"{framework} "
    asked = "|".join(sorted((re.escape(_plain(w)) for said in words for w in said.split()), key=len, reverse=True)).replace(r"\-", "-")
    pattern = re.compile(asked.replace("-", "[-_]"), re.IGNORECASE)
    spans = [m.span() for m in pattern.finditer(text)]
    first, last = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    start, end = _window(text, first, last, room - len(head) - (2 * len(pattern.findall(head + text)) if marks else 0))
    shown = head + ("... " if start else "") + text[start:end] + (" ..." if end < len(text) else "")
    out, at = Text(), 0
    for m in pattern.finditer(shown):
        out.append(shown[at : m.start()]).append(f"*{m[0]}*" if marks else m[0], style="bold yellow")
        at = m.end()
    return out.append(shown[at:])


def _window(text: str, first: int, last: int, room: int) -> tuple[int, int]:
    """Return where an excerpt of whole words begins and ends that holds what is between ``first`` and ``last``, and dots where it is cut."""
    if len(text) <= room:
        return 0, len(text)
    start, end = text.rfind(" ", 0, first) + 1, text.find(" ", last)
    end = len(text) if end < 0 else end
    right = True
    while True:
        wider = end, start
        for _ in range(2):
            if right and end < len(text):
                further = text.find(" ", end + 1)
                further = len(text) if further < 0 else further
                end = further if further - start <= room - 8 else end
            elif not right and start:
                nearer = text.rfind(" ", 0, start - 1) + 1
                start = nearer if end - nearer <= room - 8 else start
            right = not right
        if wider == (end, start):
            return start, end
