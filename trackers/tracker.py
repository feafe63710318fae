"""What a tracker is, and how a run keeps several: one that fails is named and left out, for no curve is worth a run."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol


class Tracker(Protocol):
    """A place where metrics go: opened once, told one line per step, closed whatever happened."""

    def open(self, run: Path, recipe: Mapping[str, Any], step: int) -> None:
        """Begin, or go on after ``step``; what was said of later steps is void, since a resumed run takes them again."""
        ...

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Take the numbers of one step."""
        ...

    def close(self) -> None:
        """Write out what is held back."""
        ...


class Tracking:
    """The trackers of one run. ``warn`` is called with the name and the error of each that fails; nothing is raised."""

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str, str], None]) -> None:
        self._open, self._warn = dict(trackers), warn

    def open(self, run: Path, recipe: Mapping[str, Any], step: int) -> None:
        """Open all."""
        self._each(lambda t: t.open(run, recipe, step))

    def log(self, line: Mapping[str, Any]) -> None:
        """Hand on the numbers of a line of the metrics file."""
        if self._open:
            told = numbers(line)
            self._each(lambda t: t.log(int(line["step"]), told))

    def close(self) -> None:
        """Close all."""
        self._each(lambda t: t.close())
        self._open.clear()

    def _each(self, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._open.items()):
            try:
                do(tracker)
            except Exception as error:  # a network, a full disk, a stranger's library: anything may fail in the middle of a night
                del self._open[name]
                self._warn(name, f"{type(error).__name__}: {error}; it is told nothing more. metrics.jsonl has everything.")


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """Return what of a line is a curve: its numbers, without the step."""
    return {k: float(v) for k, v in line.items() if k != "step" and isinstance(v, int | float) and not isinstance(v, bool)}


def needed(module: str, package: str, names: Sequence[str]) -> Any:
    """Return a module when it is first wanted; where it is missing, raise ``ValueError`` with the command that brings it."""
    try:
        found = import_module(module)
    except ImportError as error:
        raise ValueError(f"the tracker {package!r} needs {package}: pip install {package} ({error})") from error
    if missing := [n for n in names if not hasattr(found, n)]:
        raise ValueError(
            f"the tracker {package!r} finds a {module} without {missing[0]!r} at {getattr(found, '__file__', None)}; pip install {package}"
        )
    return found
