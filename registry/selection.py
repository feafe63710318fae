"""Which installed plugins there are, and which of them are wanted."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.metadata import Distribution, EntryPoint, distributions
from typing import Self

from .errors import LossaryError, PluginError

GROUP = "lossary"
_OURS = "LOSSARY_"
_NAMED = ("LOSSARY_BLOCK", "LOSSARY_PLUGINS", "LOSSARY_STRICT", "LOSSARY_NO_PLUGINS", "LOSSARY_RECIPES")


@dataclass(frozen=True)
class Plugin:
    """A plugin that was taken in."""

    name: str
    distribution: str
    components: tuple[str, ...]
    columns: tuple[str, ...] = field(default=(), compare=False)
    recipes: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class Failure:
    """A plugin that could not be taken in, and why."""

    plugin: str
    distribution: str
    why: str
    traceback: str
    error: BaseException | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"plugin {self.plugin!r} ({self.distribution}) did not load: {self.why}"


@dataclass(frozen=True)
class Skipped:
    """A plugin that is installed and was not even imported: ``state`` is ``blocked`` or ``not asked for``."""

    plugin: str
    distribution: str
    state: str
    why: str


@dataclass(frozen=True)
class Selection:
    """Who may enter: what the environment says, unless a caller says otherwise.

    ``block`` (``$LOSSARY_BLOCK``) names entry points or distributions that are not even imported, or single components as ``kind/name``
    or ``kind/vendor/name``. ``only`` (``$LOSSARY_PLUGINS``) names the plugins that are loaded: empty means none, unset means all.
    ``strict`` (``$LOSSARY_STRICT``) makes an error of a plugin that does not load. ``closed`` (``$LOSSARY_NO_PLUGINS``, or
    ``--no-plugins``) runs nobody else's code at all: no installed plugin, no ``plugins:`` of a recipe, no import path.
    """

    block: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    strict: bool = False
    closed: bool = False

    @classmethod
    def of_environment(cls) -> Self:
        """Read the four variables; a switch that is neither on nor off raises ``LossaryError``."""
        only = os.environ.get("LOSSARY_PLUGINS")
        return cls(
            block=frozenset(_split(os.environ.get("LOSSARY_BLOCK", ""))),
            only=None if only is None else frozenset(_split(only)),
            strict=_on("LOSSARY_STRICT"),
            closed=_on("LOSSARY_NO_PLUGINS"),
        )

    def blocking(self, names: Iterable[str]) -> Self:
        """Return the same with another ``block``."""
        return replace(self, block=frozenset(names))

    def refuses(self, entry: EntryPoint) -> tuple[str, str] | None:
        """Return the state of an entry point that must not be imported, and why; None: it may."""
        names = names_of(entry)
        if self.closed:
            return "not asked for", "no plugins are loaded (--no-plugins or LOSSARY_NO_PLUGINS)"
        if hit := [b for b in sorted(self.block) if alike(b) in names]:
            return "blocked", f"LOSSARY_BLOCK names {hit[0]!r}"
        if self.only is not None and not names & set(map(alike, self.only)):
            return "not asked for", f"LOSSARY_PLUGINS names {', '.join(map(repr, sorted(self.only))) or 'none'}"
        return None


def _on(variable: str) -> bool:
    said = os.environ.get(variable, "").strip().lower()
    if said not in (*_OFF, *_ON):
        raise LossaryError(f"{variable} is {said[:40]!r}; it is a switch, 1 or 0.")
    return said in _ON


_OFF = ("", "0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")


def misspelt() -> list[str]:
    """Return a note on each variable whose name is nearly one of ours: it does nothing."""
    strange = sorted(v for v in os.environ if v.startswith(_OURS) and v not in _NAMED and not v.startswith("LOSSARY_SET"))
    ends = [name.removeprefix(_OURS) for name in _NAMED]
    close = {v: get_close_matches(v.removeprefix(_OURS), ends, n=1, cutoff=0.7) for v in strange}
    return [f"the variable {v} does nothing. Did you mean {_OURS + near[0]!r}?" for v, near in close.items() if near]


def _split(text: str) -> list[str]:
    return [part for p in text.split(",") if (part := p.strip())]


def alike(name: str) -> str:
    """Return a distribution's name as package indexes compare it: ``My_Dist`` and ``my.dist`` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(entry: EntryPoint) -> set[str]:
    """Return the names by which an entry point is asked for: its own and its distribution's."""
    return {alike(entry.name), alike(_name(entry.dist))} - {""}


def brought_by(entry: EntryPoint) -> str:
    """Return ``name version`` of the distribution that an entry point belongs to."""
    name = _name(entry.dist)
    return f"{name} {_version(entry.dist)}" if name else "unknown"


def check_vendor(entry: EntryPoint, who: str) -> None:
    """Refuse a distribution of our own name: ``lossary/NAME`` in a recipe means what is built in."""
    if alike(_name(entry.dist)) == GROUP:
        raise PluginError(f"{who}: its distribution is called {GROUP!r}, which stands for the built-in components; rename it.")


def _name(dist: Distribution | None) -> str:
    """A folder of metadata may be half deleted: then nothing of it can be read."""
    try:
        return dist.name or "" if dist is not None else ""
    except Exception:
        return ""


def _version(dist: Distribution | None) -> str:
    try:
        return dist.version or "?" if dist is not None else "?"
    except Exception:
        return "?"


def _ours(dist: Distribution) -> bool:
    """Say whether a list of entry points that cannot be read has plugins of this library in it."""
    try:
        return f"[{GROUP}]" in (dist.read_text("entry_points.txt") or "")
    except Exception:  # not even text
        return False


def installed() -> tuple[list[EntryPoint], list[Failure]]:
    """Return the entry points of every plugin, in a fixed order, and the distributions whose list of them cannot be read.

    ``importlib.metadata.entry_points`` would stop at the first broken list of anybody.
    """
    seen: set[str] = set()
    found, broken = [], []
    for dist in distributions():
        name = _name(dist)
        if name and alike(name) in seen:
            continue  # shadowed by an earlier folder of sys.path, as an import would be
        seen.add(alike(name))
        try:
            found += [e for e in dist.entry_points if e.group == GROUP]
        except Exception as error:
            if _ours(dist):
                why = "its entry_points.txt cannot be read: each line says name = module."
                broken.append(Failure(name or "?", f"{name or 'unknown'} {_version(dist)}", why, "", error))
    return sorted(found, key=lambda e: (brought_by(e), e.name)), broken
