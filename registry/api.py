"""Which lossary a plugin was written for: the API that it declares, and the version that it requires."""

import re
import sys
import traceback
from importlib.metadata import Distribution
from typing import Any

from packaging.requirements import Requirement

from .errors import PluginError, text_of
from .selection import alike

__version__: str = sys.modules[__name__.partition(".")[0]].__version__  # an import would be an arrow up
API = 1
"""Goes up when hooks, decorators, kinds or special names change so that a plugin must change too."""
OLDEST = 1
"""The oldest that is still taken."""
DECLARED = "lossary_api"


def api_of(thing: object) -> int:
    """Return the API that a plugin declares as ``lossary_api = 1``; without a word it is the first.

    A module declares it for its own components too, so that a package may hold a few that need a newer one.
    """
    said = getattr(thing, "__globals__", {}).get(DECLARED) if callable(thing) else None
    said = getattr(thing, DECLARED, 1) if said is None else said
    if not isinstance(said, int) or isinstance(said, bool) or said < 1:
        raise PluginError(f"{DECLARED} is {said!r}; it is a whole number, and this lossary has API {API}.")
    return said


def check_api(number: int, who: str) -> str:
    """Return a note on an API that is about to go, or nothing; one that is not understood raises ``PluginError``."""
    if number > API:
        raise PluginError(f"{who} is written for API {number} of lossary, and lossary {__version__} has API {API}: upgrade lossary.")
    if number < OLDEST:
        raise PluginError(f"{who} is written for API {number} of lossary, and lossary {__version__} takes {OLDEST} to {API}: upgrade it.")
    return f"{who} is written for API {number} of lossary; {API} is the newest, and the old one is deprecated." if number < API else ""


def check_version(dist: Distribution | None, who: str) -> None:
    """Raise ``PluginError`` where a distribution requires another lossary, which an installer would not have let in."""
    try:
        texts = (dist.requires if dist is not None else None) or []
        ours = [Requirement(t) for t in texts if alike(re.split(r"[\s\[(<>=!~;@]", t.strip(), maxsplit=1)[0]) == "lossary"]
    except Exception as error:  # metadata may be half deleted, and an old tool may have written it
        raise PluginError(f"{who} does not say in a readable way what it requires: {text_of(error)}") from error
    for needed in ours:
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        if not needed.specifier.contains(__version__, prereleases=True):
            raise PluginError(f"{who} requires lossary{needed.specifier}, and this is lossary {__version__}.")


def newer_in(error: BaseException) -> int | None:
    """Return the API of a module in which an error arose, where that is newer: then it is the likely cause."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        said: Any = frame.f_globals.get(DECLARED)
        if isinstance(said, int) and said > API:
            return said
    return None
