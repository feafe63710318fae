"""From a picture to a file, in one style; matplotlib is imported only here and only when something is drawn."""

import io
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from ...registry import LossaryError
from .picture import Line, Panel, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png", ".pdf")
_DASHES: dict[str, Any] = {"second": (0, (4.5, 1.6)), "faint": (0, (1, 1.6))}
"""A line over another one leaves both to be seen."""


@dataclass(frozen=True)
class Ink:
    """Colours for one background."""

    text: str
    grid: str
    rule: str
    faint: str
    first: str
    second: str
    third: str
    paper: str = "none"

    def of(self, tone: str) -> str:
        """Return the colour of a line."""
        return {"first": self.first, "second": self.second, "third": self.third}.get(tone, self.faint)


LIGHT = Ink("#3b3f46", "#e7e9ec", "#b9bdc4", "#9097a1", "#0072b2", "#d55e00", "#009e73")
DARK = Ink("#cfd3d9", "#2c2f34", "#565b63", "#868d97", "#56b4e9", "#f0904d", "#35c79f")
PRINT = Ink("#3b3f46", "#e7e9ec", "#b9bdc4", "#9097a1", "#0072b2", "#d55e00", "#009e73", "#ffffff")


def save(picture: Picture, path: Path, ink: Ink = PRINT, *, heading: str = "") -> None:
    """Write a picture as SVG, PNG or PDF, as the suffix says; with a ``heading`` it stands alone: that above, the caption below."""
    check_suffix(path)
    path.write_bytes(rendered(picture, path.suffix.lower()[1:], ink, heading=heading))


def check_suffix(path: Path) -> None:
    """Raise ``LossaryError`` for a file that says no form of a picture."""
    if not path.name:
        raise LossaryError("--plot names no file; say one that ends in .svg, .png or .pdf.")
    if path.suffix.lower() not in SUFFIXES:
        raise LossaryError(
            f"{path}: a picture ends in .svg, .png or .pdf, {f'not in {path.suffix}' if path.suffix else 'this name in none'}."
        )


def rendered(picture: Picture, form: str, ink: Ink = PRINT, *, heading: str = "") -> bytes:
    """Return a picture as the bytes of a file; the same picture gives the same bytes."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LossaryError("drawing needs matplotlib, which is not installed: pip install lossary[plot]") from error
    with matplotlib.rc_context(fname=str(files("lossary.cli.portrait") / "lossary.mplstyle")):
        n = len(picture.panels)
        width, height = 7.5 if n > 1 else 5.6, 2.6 if n == 1 else 2.8
        below = wrap(picture.caption, int(16 * width)) if heading else []
        strip = 0.3 + (0.26 if n > 1 and _entries(picture) else 0.0) if heading else 0.0
        more = strip + 0.06 + 0.15 * len(below) if heading else 0.0
        figure = Figure(figsize=(width, height + more), layout="constrained", facecolor=ink.paper)
        canvas: Any = FigureCanvasSVG(figure) if form == "svg" else FigureCanvasAgg(figure)
        for i, panel in enumerate(picture.panels):
            _panel(figure.add_subplot(1, n, i + 1), panel, ink)
        _legend(figure, picture, ink, 1 - 0.27 / (height + more) if heading else None)
        if heading:
            _surrounded(figure, heading, below, strip, more - strip, ink)
        out = io.BytesIO()
        undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        canvas.figure.savefig(out, format=form, facecolor=ink.paper, transparent=ink.paper == "none", metadata=undated.get(form))
        return out.getvalue()


def _surrounded(figure: "Figure", heading: str, below: list[str], strip: float, foot: float, ink: Ink) -> None:
    """Give a picture that no page surrounds its name and what was done to get it: inches for a strip above and a foot below the panels."""
    height = figure.get_figheight()
    layout: Any = figure.get_layout_engine()
    layout.set(rect=(0, foot / height, 1, 1 - (strip + foot) / height))
    figure.text(0.012, 1 - 0.07 / height, heading, va="top", fontsize=10.5, weight="bold", color=ink.text)
    figure.text(0.012, 0.05 / height, "\n".join(below), va="bottom", fontsize=7.5, linespacing=1.3, color=ink.text)


def _panel(axes: "Axes", panel: Panel, ink: Ink) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title, color=ink.text)
    axes.set_xlabel(panel.x, color=ink.text)
    axes.set_facecolor("none")
    axes.tick_params(colors=ink.text, which="both")
    axes.grid(color=ink.grid)
    axes.grid(visible=False, axis="x")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(ink.rule)
    if all(line.dots for line in panel.lines if line.tone != "faint"):  # there is nothing between whole numbers
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))
    if panel.doubling:
        axes.set_xscale("log", base=2)
        axes.set_xticks(panel.lines[0].x.tolist(), [f"{x:g}" for x in panel.lines[0].x.tolist()])
        axes.minorticks_off()
    for x in panel.at:
        axes.axvline(x, color=ink.rule, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    for line in panel.lines:
        _line(axes, line, ink)
    if panel.window is not None:
        axes.set_ylim(*panel.window)
    else:
        _roomy(axes, panel)
    low, high = axes.get_ylim()
    if low < 0 < high:
        axes.axhline(0, color=ink.rule, linewidth=0.7, zorder=1)


def _line(axes: "Axes", line: Line, ink: Ink) -> None:
    faint = line.tone == "faint"
    axes.plot(
        line.x.tolist(),
        line.y.tolist(),
        color=ink.of(line.tone),
        linestyle=_DASHES.get(line.tone, "solid") if line.joined else "none",
        linewidth=1.5 if faint else None,
        marker="o" if line.dots else None,
        zorder=2 if faint else 3,
    )


def _roomy(axes: "Axes", panel: Panel) -> None:
    """Give a line that never moves some air, or rounding would fill the panel."""
    values = [v for line in panel.lines for v in line.y.tolist()]
    low, high = min(values), max(values)
    if high - low < 1e-6 * max(1.0, abs(high)):
        axes.set_ylim(min(0.0, 1.6 * low), max(0.0, 1.6 * high) or 1.0)


def _entries(picture: Picture) -> dict[str, str]:
    """Return the tone of each label; a single line that is alone in its picture needs no legend."""
    seen = {line.label: line.tone for panel in picture.panels for line in panel.lines if line.label}
    return seen if len(seen) > 1 or "faint" in seen.values() else {}


def _legend(figure: Any, picture: Picture, ink: Ink, top: float | None) -> None:
    """Name the lines beside a single panel, or above several; ``top``: below a heading that ends at this height."""
    from matplotlib.lines import Line2D

    seen = _entries(picture)
    if not seen:
        return
    keys = [Line2D([], [], color=ink.of(tone), linestyle=_DASHES.get(tone, "solid")) for tone in seen.values()]
    alone = len(picture.panels) == 1
    place: dict[str, Any] = {"loc": "outside right upper" if alone else "outside upper left"}
    if top is not None and not alone:  # what stands outside would take the heading's place
        place = {"loc": "upper left", "bbox_to_anchor": (0.0, top)}
    figure.legend(keys, list(seen), ncols=1 if alone else len(seen), labelcolor=ink.text, borderaxespad=0.2, **place)
