"""Curves as SVG, written by hand: a page of forty charts stays small, and takes its colours from the page's light or dark."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 340, 190, 46, 8, 8, 24
DASHES = ("", "6 3", "2 2.5", "9 3 2 3", "12 4", "4 2 1 2 1 2")
COLOURS = 8
"""Of the page's style, ``--c0`` to ``--c7``; a dash belongs to each, and another one to each further round."""


@dataclass(frozen=True)
class Line:
    """One variant's curve: the mean over seeds, and the least and the most of them."""

    name: str
    style: int
    steps: Sequence[int]
    mean: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def stroke(style: int) -> str:
    """Return the attributes that tell a variant by colour and by dash."""
    dash = DASHES[(style + style // COLOURS) % len(DASHES)]
    return f'class="s{style % COLOURS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def key(style: int) -> str:
    """Return the sample of a line for the legend."""
    return f'<svg class="key" width="34" height="10" aria-hidden="true"><path d="M1 5H33" {stroke(style)}/></svg>'


def chart(metric: str, lines: Sequence[Line]) -> str:
    """Return one chart; what it shows is told to who cannot see it."""
    steps = [s for line in lines for s in line.steps]
    values = [v for line in lines for v in (*line.low, *line.high) if math.isfinite(v)]
    first, last = min(steps), max(max(steps), min(steps) + 1)
    ticks = nice(min(values), max(values))
    bottom, top = ticks[0], ticks[-1]

    def x(step: float) -> float:
        return round(LEFT + (step - first) / (last - first) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - (value - bottom) / (top - bottom) * (HEIGHT - TOP - BOTTOM), 1)

    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(t)}" y2="{y(t)}"/>'
        f'<text class="tick" x="{LEFT - 5}" y="{y(t) + 3.5:.1f}" text-anchor="end">{shown(t, ticks)}</text>'
        for t in ticks
    ]
    for t in dict.fromkeys((first, (first + last) // 2, last)):
        anchor = "end" if t == last else "start" if t == first else "middle"
        parts.append(f'<text class="tick" x="{x(t)}" y="{HEIGHT - 8}" text-anchor="{anchor}">{t}</text>')
    for line in lines:
        for piece in _pieces(line):
            upper = " ".join(f"{x(line.steps[i])},{y(line.high[i])}" for i in piece)
            lower = " ".join(f"{x(line.steps[i])},{y(line.low[i])}" for i in reversed(piece))
            parts.append(f'<polygon class="band b{line.style % COLOURS}" data-v="{line.style}" points="{upper} {lower}"/>')
    for line in lines:
        for piece in _pieces(line):
            drawn = "L".join(f"{x(line.steps[i])} {y(line.mean[i])}" for i in piece)
            mark = "" if len(piece) > 1 else "h.1"
            parts.append(f'<path data-v="{line.style}" d="M{drawn}{mark}" {stroke(line.style)}><title>{escape(line.name)}</title></path>')
    told = "; ".join(f"{line.name} {_last(line):.3g}" for line in lines)
    label = escape(f"{metric} from step {first} to {last}. At the end: {told}.", quote=True)
    return f'<svg class="chart" role="img" aria-label="{label}" viewBox="0 0 {WIDTH} {HEIGHT}">{"".join(parts)}</svg>'


def whisker(low: float, mid: float, high: float, bounds: tuple[float, float], style: int) -> str:
    """Return an interval on a line from the least to the most of all intervals; the numbers stand beside it."""
    least, most = bounds
    span = most - least or 1.0

    def x(value: float) -> float:
        return round(6 + (value - least) / span * 108, 1)

    return (
        f'<svg class="whisker" viewBox="0 0 120 14" aria-hidden="true"><line class="grid" x1="6" x2="114" y1="7" y2="7"/>'
        f'<path d="M{x(low)} 7H{x(high)}" class="s{style % COLOURS} thick"/><circle cx="{x(mid)}" cy="7" r="4" class="f{style % COLOURS}"/></svg>'
    )


def nice(low: float, high: float) -> list[float]:
    """Return three to six round numbers around a range."""
    if high - low <= 1e-12 * max(1.0, abs(high)):
        pad = abs(high) * 0.1 or 0.5
        low, high = low - pad, high + pad
    raw = (high - low) / 4
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.999)
    start, end = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(start, end + 1)]


def shown(value: float, ticks: Sequence[float]) -> str:
    """Return a tick with as many digits as tell it from its neighbours."""
    step, largest = ticks[1] - ticks[0], max(abs(t) for t in ticks)
    if largest >= 1e5 or (largest and step < 1e-4):
        factor, _, power = f"{value:.1e}".partition("e")
        return f"{factor}e{int(power)}" if value else "0"
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    digits += 0 if abs(round(step, digits) - step) < step * 1e-6 else 1
    return f"{value if abs(value) > step * 1e-6 else 0:.{digits}f}"


def _pieces(line: Line) -> list[list[int]]:
    """Return the stretches of a curve in which every number is finite."""
    made: list[list[int]] = [[]]
    for i in range(len(line.steps)):
        if math.isfinite(line.low[i]) and math.isfinite(line.high[i]):
            made[-1].append(i)
        elif made[-1]:
            made.append([])
    return [piece for piece in made if piece]


def _last(line: Line) -> float:
    return line.mean[-1] if line.mean else math.nan
