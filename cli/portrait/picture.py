"""What a picture shows, before anything is drawn: lines in panels, and a caption."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Line:
    """One curve."""

    x: Tensor
    y: Tensor
    label: str = ""
    tone: str = "first"
    """``first`` (right, or A = +1), ``second`` (wrong, or A = -1), ``third``, or ``faint`` for what is there only to compare with."""
    dots: bool = False
    """Mark the points themselves."""
    joined: bool = True


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    lines: tuple[Line, ...]
    at: tuple[float, ...] = ()
    """Where a thin vertical rule stands: equality, the end of a turn."""
    window: tuple[float, float] | None = None
    """The range of y, where the whole of it would hide what matters."""
    doubling: bool = False
    """Equal steps along x are equal factors, marked at the points."""


@dataclass(frozen=True)
class Picture:
    """Panels side by side, and what was done to get them."""

    panels: tuple[Panel, ...]
    caption: str
