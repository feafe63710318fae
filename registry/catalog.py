"""The catalog: which component bears which name, and which distribution brought it."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import pluggy

from .component import Component, check_columns, component_of, describe
from .errors import LossaryError, PluginError, SignatureError, UnknownName, listing, nearest
from .fields import Column, Vocabulary
from .hooks import Hooks
from .kinds import KINDS

GROUP = "lossary"


@dataclass(frozen=True)
class Plugin:
    """A plugin that was taken in."""

    name: str
    distribution: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Failure:
    """A plugin that could not be taken in, and why."""

    plugin: str
    distribution: str
    why: str
    traceback: str


class Catalog:
    """An ordinary object, built from plugins: no global state, and nothing happens when a plugin is imported."""

    def __init__(self) -> None:
        self._by: dict[tuple[str, str], list[Component]] = {}
        self._recipes: dict[str, list[tuple[str, str]]] = {}
        self._listeners: list[Any] = []
        self.fields = Vocabulary()
        self.plugins: list[Plugin] = []
        self.failures: list[Failure] = []

    @classmethod
    def load(cls, builtin: Iterable[object] = (), *, discover: bool = True, block: Iterable[str] | None = None) -> Self:
        """Take in the built-in modules and, if wished, every installed plugin; one that breaks is kept in ``failures``.

        ``block`` (default: ``$LOSSARY_BLOCK``, comma-separated) names entry points or distributions that are not even imported, or
        single components as ``kind/name``.
        """
        self = cls()
        blocked = set(filter(None, (os.environ.get("LOSSARY_BLOCK", "").split(",") if block is None else block)))
        for module in builtin:
            self._take(module, getattr(module, "__name__", repr(module)), GROUP)
        for entry in _installed() if discover else ():
            brought = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
            if {entry.name, entry.dist.name if entry.dist else ""} & blocked:
                continue
            try:
                self._take(entry.load(), entry.name, brought)
            except (Exception, SystemExit) as error:  # a stranger's module may raise anything
                self.failures.append(Failure(entry.name, brought, f"{type(error).__name__}: {error}", traceback.format_exc()))
        for kind, _, name in (b.partition("/") for b in blocked):
            self._by.pop((kind, name.replace("_", "-")), None)
        return self

    # ── growing: each call returns a new catalog ─────────────────────────────────────────────────────────────────────

    def extended(self, functions: Iterable[Callable[..., Any]] = (), columns: Iterable[Column] = (), *, brought: str = "this script") -> Self:
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
        """Return a copy with a recipe's plugin: an importable module, or a ``.py`` file relative to ``folder``.

        Every decorated function and every ``column(...)`` that the module itself defines joins. A plugin asked for by name that does
        not load raises ``PluginError`` with its cause.
        """
        new = self._copy()
        module = _load(name, folder)
        new._take(module, name, f"plugin {name}", scan=True)
        return new

    def _copy(self) -> Self:
        new = type(self)()
        new._by = {key: list(value) for key, value in self._by.items()}
        new._recipes = {key: list(value) for key, value in self._recipes.items()}
        new._listeners, new.fields = list(self._listeners), self.fields
        new.plugins, new.failures = list(self.plugins), list(self.failures)
        return new

    def _take(self, plugin: object, name: str, brought: str, *, scan: bool = False) -> None:
        manager = pluggy.PluginManager(GROUP)
        manager.add_hookspecs(Hooks)
        manager.register(plugin, name)
        try:
            manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"plugin {name!r} ({brought}): {error}. Known hooks are {listing(h for h in vars(Hooks) if h[0] != '_')}.") from error
        functions = [f for found in manager.hook.lossary_components() for f in found]
        columns = [c for found in manager.hook.lossary_fields() for c in found]
        if scan and not functions:
            functions = [f for f in vars(plugin).values() if callable(f) and component_of(f) and f.__module__ == plugin.__name__]  # type: ignore[attr-defined]
        if scan and not columns:
            columns = [c for c in vars(plugin).values() if isinstance(c, Column)]
        before = self._copy()
        try:
            self.fields = self.fields.extended(columns, brought)
            made = [component_of(f) or _undecorated(f, name) for f in functions]
            self._add(made, brought)
            for recipes in manager.hook.lossary_recipes():
                for key, text in recipes.items():
                    self._recipes.setdefault(key, []).append((brought, text))
        except LossaryError:
            self._by, self._recipes, self.fields = before._by, before._recipes, before.fields  # a plugin enters whole or not at all
            raise
        self._listeners.append(manager)
        self.plugins.append(Plugin(name, brought, tuple(f"{c.kind.name}/{c.name}" for c in made)))

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
        vendor, _, bare = name.replace("_", "-").rpartition("/")
        found = [c for c in self._by.get((kind, bare), []) if not vendor or _vendor(c) == vendor]
        if len(found) == 1:
            return found[0]
        if found:
            ways = listing(f"{_vendor(c)}/{bare}" for c in found)
            raise UnknownName(f"The {kind} {name!r} comes from {listing(c.distribution for c in found)}. Say which: {ways}.")
        elsewhere = listing(k for k, n in self._by if n == bare)
        other = f" {name!r} is registered as {elsewhere}." if elsewhere != "nothing" else ""
        failed = "".join(f"\n  Plugin {f.plugin!r} ({f.distribution}) did not load: {f.why}" for f in self.failures)
        hint = nearest(bare, self.names(kind)) or f" Known: {', '.join(self.names(kind)) or 'none'}."
        raise UnknownName(f"No {kind} is called {name!r}.{other}{hint}{failed}")

    def resolve(self, kind: str, use: str | Callable[..., Any]) -> Component:
        """Return what a slot names: a registered name, an import path ``package.module:function``, or a callable itself."""
        if callable(use):
            component = component_of(use) or describe(use, KINDS[kind])
            component = component if component.distribution else replace(component, distribution="this script")
        elif ":" in use:
            component = replace(_imported(use, kind), distribution=f"module {use.partition(':')[0]}")
        else:
            return self.get(kind, use)
        if component.kind.name != kind:
            raise UnknownName(f"{component.name!r} is a {component.kind.name}, no {kind}.")
        check_columns(component, self.fields)
        return component

    def recipes(self) -> Mapping[str, list[tuple[str, str]]]:
        """Return the recipes that plugins brought: ``{name: [(distribution, text), ...]}``."""
        return self._recipes

    def announce(self, event: Mapping[str, Any]) -> None:
        """Tell every plugin's ``lossary_event`` of an event."""
        for manager in self._listeners:
            manager.hook.lossary_event(event=event)


def _vendor(component: Component) -> str:
    brought = component.distribution.removeprefix("plugin ").partition(" ")[0]
    return Path(brought).stem.replace("_", "-") if brought.endswith(".py") else brought.replace("_", "-")


def _undecorated(function: Callable[..., Any], plugin: str) -> Component:
    raise SignatureError(f"plugin {plugin!r} offers {function!r}, which carries no lossary decorator.")


def _imported(path: str, kind: str) -> Component:
    module, _, attribute = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UnknownName(f"{path!r} cannot be imported: {error}.") from error
    if not callable(function):
        raise UnknownName(f"{path!r} is no function but {type(function).__name__}.")
    return component_of(function) or describe(function, KINDS[kind])


def _load(name: str, folder: Path) -> ModuleType:
    path = folder / name
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        if not path.is_file():
            beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
            raise PluginError(f"plugin {name!r}: there is no file {path}.{nearest(path.name, beside)}")
        # A name of its own for each path, so that equal file names of two recipes do not meet in sys.modules.
        unique = f"lossary_plugin_{path.stem}_{blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
        spec = importlib.util.spec_from_file_location(unique, path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        spec.loader.exec_module(module)
        return module
    except LossaryError as error:
        raise PluginError(f"plugin {name!r}: {error}") if not isinstance(error, PluginError) else error from None
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        raise PluginError(f"plugin {name!r} does not load: {type(error).__name__}: {error}{_line_in(error, path)}") from error


def _line_in(error: BaseException, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename) == path]
    return f" (line {frames[-1].lineno} of {path.name})" if frames else ""


def _installed() -> list[EntryPoint]:
    """Installed plugins in a fixed order: folders are listed by the file system, hence in any order."""
    return sorted(entry_points(group=GROUP), key=lambda e: (e.dist.name if e.dist else "", e.name))
