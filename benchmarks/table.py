"""The one table: for a terminal, and for docs/performance.md (``python benchmarks/table.py`` writes it there)."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
HEADINGS = ("figure", "ours", "peer", "ratio", "bound", "ratio to bound")
# A row is (figure, ours, peer, ratio, bound, ratio to bound); what a figure should be stands behind it in brackets.


def cells(row: dict[str, Any]) -> tuple[str, ...]:
    """Return one line of the table as text."""
    ours, peer, bound, targets = row["ours"], row["peer"], row["bound"], row["targets"]
    mine, theirs = ours["seconds"], peer["seconds"]
    named = f"{peer['name']}: {peer['note'] or time(theirs)}" if peer["name"] else "-"
    ratio = "-" if mine is None or not theirs else short(mine / theirs) + wanted(targets.get("ratio"), mine / theirs)
    if "over" in targets and mine is not None and theirs is not None:
        over = mine - theirs
        ratio += f", {over * 1e6:+.0f} µs" + wanted(targets["over"] * 1e6, over * 1e6, " µs")
    what, to_bound = "-", "-"
    if bound is not None and bound["seconds"]:
        what = f"{time(bound['seconds'])} {bound['what']}"
        if mine is not None:
            to_bound = short(mine / bound["seconds"]) + wanted(targets.get("to_bound"), mine / bound["seconds"])
    return row["figure"], ours["note"] or time(mine), named, ratio, what, to_bound


def wanted(target: float | None, reached: float, unit: str = "") -> str:
    if target is None:
        return ""
    return f" (≤ {short(target)}{unit}{'' if reached <= target else ': missed'})"


def short(x: float) -> str:
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"


def time(seconds: float | None) -> str:
    """Return seconds to three digits in the unit that suits them."""
    if seconds is None:
        return "-"
    scale, unit = next(((s, u) for s, u in ((1, "s"), (1e-3, "ms")) if seconds >= s), (1e-6, "µs"))
    return f"{seconds / scale:.3g} {unit}"


def text(told: dict[str, Any]) -> str:
    """Return the table with aligned columns."""
    lines = [HEADINGS, *(cells(row) for row in told["rows"])]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    rule = "─" * (sum(widths) + 2 * len(widths))
    body = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(
        [f"{told['machine']}, torch {told['torch']}{', quick run' if told['quick'] else ''}", rule, body[0], rule, *body[1:], rule]
    )


def markdown(told: dict[str, Any]) -> str:
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *(cells(row) for row in told["rows"])]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def results() -> Iterable[Path]:
    """Return the committed results, one file per machine."""
    return (p for p in sorted((HERE / "results").glob("*.json")) if not p.stem.endswith("-quick") and "dry" not in p.stem)


def filled(page: str) -> str:
    """Return the page with each machine's table between its two comments."""
    for path in results():
        begin, end = f"<!-- table: {path.stem} -->", "<!-- end -->"
        there = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        new = f"{begin}\n{markdown(json.loads(path.read_text()))}\n{end}"
        if not there.search(page):
            raise SystemExit(f"{PAGE.name} has no place for {path.name}: add the lines {begin} and {end}.")
        page = there.sub(lambda _, new=new: new, page)
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
