"""Errors that say what is wrong, where, and what would be right."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


class LossaryError(Exception):
    """Base of every error raised on purpose here."""


class UnknownName(LossaryError):
    """Nobody registered this name, or more than one distribution did."""


class SignatureError(LossaryError):
    """A component's signature does not say what its kind must say."""


class PluginError(LossaryError):
    """A plugin that was asked for by name could not be taken in."""


class PluginWarning(UserWarning):
    """A plugin did not load, or does something that the host had to stop; everything else works."""


class ColumnError(LossaryError):
    """A column of a batch is missing, unknown, misshapen or not finite."""


class ComponentError(LossaryError):
    """A component raised an error of its own, which is the cause of this one."""


def clipped(text: str, most: int = 80) -> str:
    """Return a text that somebody else wrote as it is repeated in a sentence: of a long one only how it begins."""
    return text if len(text) <= most else f"{text[: most - 3]}..."


def text_of(error: BaseException) -> str:
    """Return an error's text; where there is none to be had, as of a stranger's class, say so."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as broken:
        return f"(no text, for its __str__ raises {type(broken).__name__})"


def worded(error: BaseException) -> str:
    """Return an error's type and text."""
    return f"{type(error).__name__}: {text_of(error)}"


@dataclass(frozen=True)
class Place:
    """Where a value was written: a file with line and column counted from 1, or a text of one line (an override) with a character of it."""

    source: str
    line: int = 0
    column: int = 0
    origin: str = "file"
    """``file``, ``base`` (a file that the recipe builds on), ``python``, ``environment`` or ``override``."""

    def __str__(self) -> str:
        if self.line:
            return f"{self.source}:{self.line}:{self.column}"
        return f"{self.source}, character {self.column}" if self.column else self.source


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a recipe: the path of the key, the place of its text, and a sentence."""

    path: str
    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {clipped(self.path)}: {self.message}" if self.path else f"{self.place}: {self.message}"


class RecipeError(LossaryError):
    """Everything that is wrong with a recipe, at once, in the order of its lines."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(sorted(faults, key=lambda f: (f.place.source, f.place.line, f.place.column)))
        super().__init__("\n".join(map(str, (*self.faults[:MOST], *_left_out(self.faults)))))


MOST = 50
"""Faults that are spelt out; what is wrong fifty times over is rarely wrong in a fifty-first way."""


def _left_out(faults: Sequence[Fault]) -> list[str]:
    return [f"... and {len(faults) - MOST} more"] if len(faults) > MOST else []


def nearest(word: str, among: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` or the empty string; ``-`` and ``_`` count as the same letter."""
    plain = {name.replace("_", "-").lower(): name for name in among}
    asked = word.replace("_", "-").lower()
    close = difflib.get_close_matches(asked, plain, n=1, cutoff=0.55) or [p for p in plain if asked and (p in asked or asked in p)][:1]
    return f" Did you mean {plain[close[0]]!r}?" if close else ""


def listing(names: Iterable[str]) -> str:
    """Return names as they are read in a sentence: ``a, b and c``."""
    *head, last = sorted(names) or ["nothing"]
    return f"{', '.join(head)} and {last}" if head else last
