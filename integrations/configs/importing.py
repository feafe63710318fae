"""``import-config``: a file of another framework, read into a recipe that composes."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...builtin import catalog
from ...pipeline import load_recipe, read_yaml
from ...pipeline.build import build
from ...registry import LossaryError, RecipeError, listing, nearest
from . import openrlhf, skyrl, trl, verl
from .mapping import APPROXIMATED, Reading, Row, flat
from .shell import values_of_words

FRAMEWORKS = {"verl": verl, "trl": trl, "skyrl": skyrl, "openrlhf": openrlhf}


@dataclass(frozen=True)
class Imported:
    """A recipe and what became of every key."""

    recipe: dict[str, Any]
    rows: tuple[Row, ...]

    @property
    def approximations(self) -> tuple[Row, ...]:
        """The rows in which the recipe is not quite what the framework does."""
        return tuple(r for r in self.rows if r.fate == APPROXIMATED)


def import_config(framework: str, text: str, source: str = "the configuration") -> Imported:
    """Read YAML, or ``key=value`` and ``--key value`` words of a command line; what has no counterpart raises ``LossaryError``."""
    if framework not in FRAMEWORKS:
        raise LossaryError(f"{framework!r} is no framework that is read.{nearest(framework, FRAMEWORKS)} Known: {listing(FRAMEWORKS)}.")
    reader = FRAMEWORKS[framework]
    reading = Reading(values_of(text, source), reader.DEFAULTS)
    reader.read(reading)
    known: dict[tuple[str, str], Row] = {}
    for row in reading.rows:  # the last word on a key and place holds
        known.pop((row.key, row.here), None)
        known[row.key, row.here] = row
    settled = {row.key for row in known.values() if row.fate != "mapped"}
    rows = tuple(row for row in known.values() if row.fate != "mapped" or row.key not in settled)
    build(load_recipe(reading.recipe), catalog())  # a recipe that does not compose is never handed out
    return Imported(reading.recipe, rows)


def import_file(framework: str, path: Path) -> Imported:
    """Read a file; one that is not there or no text raises ``LossaryError``."""
    try:
        return import_config(framework, path.read_text("utf-8-sig"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise LossaryError(f"{path}: cannot be read: {error}") from error


def values_of(text: str, source: str) -> dict[str, Any]:
    """Return ``{"a.b": value}`` of YAML or of a command's words; a key said twice raises ``LossaryError``."""
    plain = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if re.search(r"(^|\s)(--[\w.]+|[+]{0,2}[\w.]+=)", plain) and not re.search(r"^\s*[\w.]+:(\s|$)", plain, re.M):
        return values_of_words(plain, source)
    document = read_yaml(text, source)
    if document.faults:
        raise RecipeError(document.faults)
    return flat(document.values)
