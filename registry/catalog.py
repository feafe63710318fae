"""The catalog: which component bears which name, and which distribution brought it."""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import pluggy

from .api import API, api_of, check_api, check_version, newer_in
from .component import Component, check_columns, component_of, describe
from .errors import PluginError, PluginWarning, SignatureError, UnknownName, clipped, listing, nearest
from .fields import Column, Vocabulary
from .fingerprint import fingerprint
from .isolation import isolated
from .kinds import KINDS
from .modules import belongs, distribution_of, findable, imported, load, said, traced, unlisted
from .offers import Offers, offers
from .selection import GROUP, Failure, Plugin, Selection, Skipped, alike, brought_by, check_vendor, installed, misspelt, names_of

SCRIPT = "this script"


@dataclass
class _Listener:
    """Who hears of events; one that raised is told no more."""

    plugin: object
    name: str
    manager: pluggy.PluginManager
    broken: bool = False


class Catalog:
    """An ordinary object, built from plugins: no global state, and nothing happens when a plugin is imported."""

    def __init__(self, selection: Selection | None = None) -> None:
        self._by: dict[tuple[str, str], list[Component]] = {}
        self._recipes: dict[str, list[tuple[str, str]]] = {}
        self._listeners: list[_Listener] = []
        self._absent: dict[tuple[str, str], str] = {}
        self.selection = selection or Selection()
        self.fields = Vocabulary()
        self.plugins: list[Plugin] = []
        self.failures: list[Failure] = []
        self.skipped: list[Skipped] = []
        self._entries: list[EntryPoint] = []
        self.notes: list[str] = []
        """What is not wrong but should be known: an old API, a component left out, a blocked name that nobody bears."""

    @classmethod
    def load(
        cls,
        builtin: Iterable[object] = (),
        *,
        discover: bool = True,
        block: Iterable[str] | None = None,
        selection: Selection | None = None,
    ) -> Self:
        """Take in the built-in modules and, if wished, every installed plugin; one that breaks is kept in ``failures``.

        ``selection`` (default: what the environment says) tells which plugins enter; ``block`` overrules its list of what is blocked.
        Where it is strict, a plugin that breaks raises ``PluginError``, with the original error as its cause.
        """
        chosen = Selection.of_environment() if selection is None else selection
        self = cls(chosen if block is None else chosen.blocking(block))
        for module in builtin:
            self._take(module, getattr(module, "__name__", repr(module)), GROUP)
        self._entries, broken = installed() if discover else ([], [])
        self.failures += broken if not self.selection.closed else []
        for entry in self._entries:
            if state := self.selection.refuses(entry):
                self.skipped.append(Skipped(entry.name, brought_by(entry), *state))
            else:
                self._enter(entry)
        if discover:
            self.notes += misspelt()
            self._missing()
        self._forget(tell=discover)
        if self.failures and self.selection.strict:
            raise PluginError(f"LOSSARY_STRICT: {self.failures[0]}") from self.failures[0].error
        return self

    def _enter(self, entry: EntryPoint) -> None:
        brought = brought_by(entry)
        who = f"plugin {entry.name!r} ({brought})"
        try:
            check_vendor(entry, who)
            check_version(entry.dist, who)
            if entry.pattern.match(entry.value) is None:
                raise PluginError(f"{who}: its entry point {entry.value!r} is no module, as in my_package.losses.")
            with isolated(who):
                plugin = entry.load()
                self._take(plugin, entry.name, brought, idle=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's module may raise anything, also what is meant to end the process
            why = said(error).removeprefix(f"{who}: ").removeprefix(f"{who} ")
            if (newer := newer_in(error)) is not None:
                why = f"it is written for API {newer}, and lossary has API {API}: {why}"
            self.failures.append(Failure(entry.name, brought, why, traced(error), error))

    def _missing(self) -> None:
        """A plugin that is asked for and not installed did not load either."""
        known = {name for e in self._entries for name in names_of(e)}
        for name in sorted(self.selection.only or ()):
            if alike(name) not in known and not self.selection.closed:
                why = f"LOSSARY_PLUGINS names it, and no installed plugin is called so.{nearest(name, known)}"
                self.failures.append(Failure(name, "not installed", why, ""))

    def _forget(self, *, tell: bool) -> None:
        """Take out what ``kind/name`` says, under all its names: a blocked component must not come back by an alias."""
        known = {name for e in self._entries for name in names_of(e)}
        gone: set[int] = set()
        for blocked in sorted(self.selection.block):
            kind, _, rest = blocked.partition("/")
            vendor, _, name = _hyphens(rest).rpartition("/")
            hit = [c for c in self._by.get((kind.replace("-", "_"), name), ()) if not vendor or _vendor(c) == vendor]
            gone |= {id(c.function) for c in hit}
            for c in hit:
                for called in (c.name, *c.aliases):
                    self._absent[c.kind.name, called] = (
                        f" LOSSARY_BLOCK names {blocked!r}, which takes out {c.kind.name}/{c.name} ({c.distribution})."
                    )
                self.notes.append(f"blocked: {c.kind.name}/{c.name} ({c.distribution}), by {blocked!r}")
            if tell and not hit and alike(blocked) not in known:
                names = {f"{k}/{n}" for k, n in self._by} if "/" in blocked else known
                bare = [f"{k}/{n}" for k, n in self._by if n == _hyphens(blocked)]
                told = f" A component is blocked with its kind: {listing(bare)}." if bare else nearest(blocked, names)
                self.notes.append(f"LOSSARY_BLOCK names {blocked!r}, which blocks nothing.{told}")
        kept = {key: [c for c in there if id(c.function) not in gone] for key, there in self._by.items()}
        self._by = {key: there for key, there in kept.items() if there}

    # ── growing: each call returns a new catalog ─────────────────────────────────────────────────────────────────────

    def extended(self, functions: Iterable[Callable[..., Any]] = (), columns: Iterable[Column] = (), *, brought: str = SCRIPT) -> Self:
        """Return a copy with a few functions and columns more; this one stays as it was."""
        new = self._copy()
        new.fields = new.fields.extended(columns, brought)
        made = []
        for function in functions:
            component = component_of(function)
            if component is None:
                raise SignatureError(f"{function!r} carries no lossary decorator; write @policy_loss (or another kind) above it.")
            made.append(component)
        new._add(made, brought)
        return new

    def with_plugin(self, name: str, folder: Path) -> Self:
        """Return a copy with a recipe's plugin: an installed plugin, an importable module, or a ``.py`` file inside ``folder``.

        Every decorated function and every ``column(...)`` that the module itself defines joins. A plugin asked for by name that does
        not load raises ``PluginError`` with its cause.
        """
        if self.selection.closed:
            raise PluginError(f"plugin {name!r} is not loaded: no plugins are (--no-plugins or LOSSARY_NO_PLUGINS).")
        new = self._copy()
        if not name.endswith(".py") and self._entered(name):
            return new
        module = load(name, folder)
        known = "" if name.endswith(".py") else distribution_of(name)
        brought = known if known and not known.startswith("module ") else f"plugin {name}"
        try:
            with isolated(f"plugin {name!r}"):
                new._take(module, name, brought, scan=True, idle=False)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a stranger's hook may raise anything
            if type(error) is PluginError:
                raise
            raise PluginError(f"plugin {name!r} cannot be taken in: {said(error)}") from error
        new._forget(tell=False)
        return new

    def _entered(self, name: str) -> bool:
        """Say whether a recipe's plugin is an installed one that is in already; one that is not in raises its cause.

        A module of that name that is not the plugin's own goes first: an entry point may be called ``losses``.
        """
        self._check_blocked(name)
        asked = [e for e in self._entries if alike(name) in names_of(e) and (belongs(name, e.value) or not findable(name))]
        for e in asked:
            plugin, who = e.name, brought_by(e)
            for s in self.skipped:
                if (s.plugin, s.distribution) == (plugin, who):
                    raise PluginError(f"plugin {name!r} ({who}) is {s.state}: {s.why}.")
            for f in self.failures:
                if (f.plugin, f.distribution) == (plugin, who):
                    raise PluginError(str(f)) from f.error
        return bool(asked)

    def _check_blocked(self, module: str) -> None:
        """A plugin that must not be imported is not imported by way of its modules either."""
        blocked = [s for s in self.skipped if s.state == "blocked"]
        own = {(e.name, brought_by(e)) for e in self._entries if belongs(module, e.value)} if blocked else set()
        home = distribution_of(module) if blocked else ""
        for s in blocked:
            if (s.plugin, s.distribution) in own or s.distribution == home:
                raise PluginError(f"{module!r} belongs to the plugin {s.plugin!r} ({s.distribution}), which is blocked: {s.why}.")

    def _copy(self) -> Self:
        new = type(self)(self.selection)
        new._by = {key: list(value) for key, value in self._by.items()}
        new._recipes = {key: list(value) for key, value in self._recipes.items()}
        new._listeners, new.fields, new._absent = list(self._listeners), self.fields, dict(self._absent)
        new._entries = self._entries
        new.plugins, new.failures, new.skipped, new.notes = list(self.plugins), list(self.failures), list(self.skipped), list(self.notes)
        return new

    def _take(self, plugin: object, name: str, brought: str, *, scan: bool = False, idle: bool = True) -> None:
        """Take in what a plugin offers, whole or not at all; only components that say they need a newer API stay out alone."""
        note = check_api(api_of(plugin), f"plugin {name!r} ({brought})")
        offered = offers(plugin, name, brought, scan=scan, idle=idle)
        before = self._copy()
        try:
            made = self._made(offered, name, brought)
        except BaseException:
            self._by, self._recipes, self.fields, self._absent = before._by, before._recipes, before.fields, before._absent
            self.notes = before.notes
            raise
        self.notes += [note] if note else []
        hears = offered.manager.hook.lossary_event.get_hookimpls()
        if hears and all(heard.plugin is not plugin for heard in self._listeners):
            self._listeners.append(_Listener(plugin, name, offered.manager))
        names = tuple(dict.fromkeys(f"{c.kind.name}/{c.name}" for c in made))
        self.plugins.append(Plugin(name, brought, names, tuple(c.name for c in offered.columns), tuple(offered.recipes)))

    def _made(self, offered: Offers, name: str, brought: str) -> list[Component]:
        self.fields = self.fields.extended(offered.columns, brought)
        made = []
        for function in offered.functions:
            component = component_of(function)
            if component is None:
                raise SignatureError(f"plugin {name!r} offers {function!r}, which carries no lossary decorator.")
            if (number := api_of(function)) > API:
                self._too_new(component, number, brought)
            else:
                made.append(component)
        self._add(made, brought)
        for key, text in offered.recipes.items():
            there = self._recipes.setdefault(key, [])
            there += [(brought, text)] if (brought, text) not in there else []
        return made

    def _too_new(self, c: Component, number: int, brought: str) -> None:
        said = f"{c.kind.name}/{c.name} ({brought}) is written for API {number} of lossary, which has API {API}: it is left out"
        self.notes.append(said)
        for called in (c.name, *c.aliases):
            self._absent[c.kind.name, called] = f" {said}; upgrade lossary."

    def _add(self, components: Iterable[Component], brought: str) -> None:
        for component in components:
            check_columns(component, self.fields)
            for name in (component.name, *component.aliases):
                there = self._by.setdefault((component.kind.name, name), [])
                if any(c.function is component.function for c in there):
                    continue
                if twin := next((c for c in there if c.distribution == brought), None):
                    raise SignatureError(
                        f"{brought} has two {component.kind.name} called {name!r}: at {twin.place} and at {component.place}. Rename one."
                    )
                there.append(replace(component, distribution=brought))

    # ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────

    def __iter__(self) -> Iterator[Component]:
        """Yield every component once, under its own name."""
        for (_, name), components in self._by.items():
            yield from (c for c in components if c.name == name)

    def names(self, kind: str) -> list[str]:
        """Return the names of one kind, aliases included, sorted."""
        return sorted(name for k, name in self._by if k == kind)

    def get(self, kind: str, name: str) -> Component:
        """Return a component by ``name``, alias or ``vendor/name``; ``-`` and ``_`` are the same.

        A name that nobody or more than one distribution registered raises ``UnknownName``, which says what is nearest, under which
        other kind the name stands, and which plugins failed to load.
        """
        if kind not in KINDS:
            raise UnknownName(f"There is no kind {kind!r}.{nearest(kind, KINDS)} Kinds are {listing(KINDS)}.")
        vendor, _, bare = _hyphens(name).rpartition("/")
        found = [c for c in self._by.get((kind, bare), []) if not vendor or _vendor(c) == vendor]
        if len(found) == 1:
            return found[0]
        if found:
            ways = listing(f"{_vendor(c)}/{bare}" for c in found)
            raise UnknownName(f"The {kind} {name!r} comes from {listing(c.distribution for c in found)}. Say which: {ways}.")
        raise UnknownName(f"No {kind} is called {clipped(name)!r}.{self._whereabouts(kind, vendor, bare)}")

    def _whereabouts(self, kind: str, vendor: str, bare: str) -> str:
        """Say where a name that was not found stands instead, what is nearest to it, and which plugins failed."""
        said = self.skips(vendor)
        if others := self._by.get((kind, bare)):  # only the vendor was wrong
            said += (
                f" {bare!r} comes from {listing(c.distribution for c in others)}: say {listing(f'{_vendor(c)}/{bare}' for c in others)}."
            )
        said += self._absent.get((kind, bare), "")
        elsewhere = [k for k, n in self._by if n == bare and k != kind]
        if elsewhere:
            said += f" {bare!r} is registered as {listing(elsewhere)}."
        if not others and (module := unlisted(kind, bare)):
            said += f" The module {module!r} defines it: name it under plugins, or pass the function in components."
        if told := [] if said else self.called_elsewhere(bare, kind):
            said += f" Elsewhere {listing(repr(c.name) for c in told[:2])} {'goes' if len(told) == 1 else 'go'} by it: see `lossary show {told[0].name}`."
        hint = "" if said and not elsewhere else nearest(bare, self.names(kind))
        if elsewhere or not (hint or said):
            hint += f" Known: {', '.join(self.names(kind)) or 'none'}."
        return said + hint + self.failed()

    def skips(self, vendor: str) -> str:
        """Say why an installed plugin is not there, if ``vendor`` is its name or its distribution's."""
        found = (s for s in self.skipped if alike(vendor) in (alike(s.plugin), _dist(s.distribution)))
        return "".join(f" Plugin {s.plugin!r} ({s.distribution}) is {s.state}: {s.why}." for s in found)

    def failed(self) -> str:
        """Return a line for each plugin that did not load: it may well have brought the name that is missing."""
        return "".join(f"\n  P{str(f)[1:]}" for f in self.failures)

    def resolve(self, kind: str, use: str | Callable[..., Any]) -> Component:
        """Return what a slot names: a registered name, an import path ``package.module:function``, or a callable itself."""
        if callable(use):
            component = component_of(use) or describe(use, KINDS[kind])
            component = component if component.distribution else replace(component, distribution=SCRIPT)
        elif ":" in use:
            if self.selection.closed:
                raise UnknownName(f"{use!r} is not imported: no plugins are loaded (--no-plugins or LOSSARY_NO_PLUGINS).")
            self._check_blocked(use.partition(":")[0])
            component = imported(use, kind)
        else:
            return self.get(kind, use)
        if component.kind.name != kind:
            raise UnknownName(f"{component.place}: {component.name!r} is a {component.kind.name}, no {kind}.")
        check_columns(component, self.fields)
        return component

    def called_elsewhere(self, word: str, kind: str | None = None) -> list[Component]:
        """Return the components whose ``compat`` quotes ``word`` as a name of some framework's: first those that most of them do."""
        asked = re.compile(rf"(?<![\w+.-]){re.escape(_hyphens(word.lower()))}(?![\w+-])")
        found = []
        for c in self:
            said = [
                _hyphens(how.lower()) for how in c.compat.values() if any(map(asked.search, re.findall("`([^`]*)`", _hyphens(how.lower()))))
            ]
            if said and kind in (None, c.kind.name):
                found.append((-len(said), min(m.start() for how in said if (m := asked.search(how))), c.name, c))
        return [c for *_, c in sorted(found, key=lambda f: f[:3])]

    def recipes(self) -> Mapping[str, list[tuple[str, str]]]:
        """Return the recipes that plugins brought: ``{name: [(distribution, text), ...]}``."""
        return self._recipes

    def fingerprint(self) -> str:
        """Return 16 hex digits that are equal in two processes exactly if both have the same components, code included."""
        return fingerprint(self)

    def announce(self, event: Mapping[str, Any]) -> None:
        """Tell every plugin's ``lossary_event`` of an event; one that raises is named in a ``PluginWarning`` and told no more."""
        for heard in self._listeners:
            if heard.broken:
                continue
            try:
                with isolated(f"plugin {heard.name!r}: lossary_event"):
                    heard.manager.hook.lossary_event(event=MappingProxyType(dict(event)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a run of days does not end because a stranger's log is full
                heard.broken = True
                warnings.warn(
                    f"plugin {heard.name!r}: lossary_event failed and is called no more: {said(error)}", PluginWarning, stacklevel=2
                )


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _dist(brought: str) -> str:
    return alike(brought.partition(" ")[0])


def _vendor(component: Component) -> str:
    """Return what stands before the slash in ``vendor/name``: a distribution without its version, or a plugin's module or file."""
    brought = component.distribution
    if brought == SCRIPT:
        return _hyphens(brought).replace(" ", "-")
    if brought.startswith("plugin "):
        plugin = brought.removeprefix("plugin ")
        return _hyphens(Path(plugin).stem if plugin.endswith(".py") else plugin)
    return _hyphens(brought.partition(" ")[0])
