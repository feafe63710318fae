"""The catalog: which component bears which name, and which distribution brought it."""

import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Self

import pluggy

from .component import Component, check_columns, component_of, describe
from .errors import LossaryError, PluginError, SignatureError, UnknownName, listing, nearest
from .fields import Column, Vocabulary
from .hooks import Hooks
from .kinds import KINDS

GROUP = "lossary"
SCRIPT = "this script"
_FILE = "lossary_plugin_"


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
        blocked = {_hyphens(b.strip()) for b in (os.environ.get("LOSSARY_BLOCK", "").split(",") if block is None else block)} - {""}
        for module in builtin:
            self._take(module, getattr(module, "__name__", repr(module)), GROUP)
        for entry in _installed() if discover else ():
            brought = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
            if {_hyphens(entry.name), _hyphens(entry.dist.name) if entry.dist else ""} & blocked:
                continue
            try:
                self._take(entry.load(), entry.name, brought, idle=False)
            except (Exception, SystemExit) as error:  # a stranger's module may raise anything
                self.failures.append(Failure(entry.name, brought, f"{type(error).__name__}: {error}", traceback.format_exc()))
        self._forget(blocked)
        return self

    def _forget(self, blocked: Iterable[str]) -> None:
        """Take out what ``kind/name`` says, under all its names: a blocked component must not come back by an alias."""
        asked = {(kind.replace("-", "_"), name) for kind, _, name in (b.partition("/") for b in blocked)}
        gone = {id(c.function) for key in asked for c in self._by.get(key, ())}
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
        """Return a copy with a recipe's plugin: an importable module, or a ``.py`` file relative to ``folder``.

        Every decorated function and every ``column(...)`` that the module itself defines joins. A plugin asked for by name that does
        not load raises ``PluginError`` with its cause.
        """
        new = self._copy()
        module = _load(name, folder)
        try:
            new._take(module, name, f"plugin {name}", scan=True, idle=False)
        except PluginError:
            raise
        except (Exception, SystemExit) as error:  # a stranger's hook may raise anything
            said = str(error) if isinstance(error, LossaryError) else f"{type(error).__name__}: {error}"
            line = "" if isinstance(error, LossaryError) else _line_in(error)  # ours name the place themselves
            raise PluginError(f"plugin {name!r} cannot be taken in: {said}{line}") from error
        return new

    def _copy(self) -> Self:
        new = type(self)()
        new._by = {key: list(value) for key, value in self._by.items()}
        new._recipes = {key: list(value) for key, value in self._recipes.items()}
        new._listeners, new.fields = list(self._listeners), self.fields
        new.plugins, new.failures = list(self.plugins), list(self.failures)
        return new

    def _take(self, plugin: object, name: str, brought: str, *, scan: bool = False, idle: bool = True) -> None:
        """Take in what a plugin's hooks offer; ``scan``: also what its module defines; ``idle``: it may offer nothing at all."""
        manager = _managed(plugin, name, brought)
        functions = [f for found in manager.hook.lossary_components() for f in found]
        columns = [c for found in manager.hook.lossary_fields() for c in found]
        if scan and not functions:
            functions = [f for f in vars(plugin).values() if callable(f) and component_of(f) and _within(f, plugin)]
        if scan and not columns:
            columns = [c for c in vars(plugin).values() if isinstance(c, Column)]
        if not (idle or functions or columns or manager.get_hookcallers(plugin)):
            wanted = "a decorated function, a column(...) or a hook" if scan else "a hook marked @hookimpl, such as lossary_components"
            raise PluginError(f"plugin {name!r} ({brought}) offers nothing; expected {wanted}.")
        before = self._copy()
        try:
            self.fields = self.fields.extended(columns, brought)
            made = [component_of(f) or _undecorated(f, name) for f in functions]
            self._add(made, brought)
            for recipes in manager.hook.lossary_recipes():
                for key, text in recipes.items():
                    self._recipes.setdefault(key, []).append((brought, text))
        except BaseException:
            self._by, self._recipes, self.fields = before._by, before._recipes, before.fields  # a plugin enters whole or not at all
            raise
        self._listeners.append(manager)
        self.plugins.append(Plugin(name, brought, tuple(dict.fromkeys(f"{c.kind.name}/{c.name}" for c in made))))

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
        raise UnknownName(f"No {kind} is called {name!r}.{self._whereabouts(kind, bare)}")

    def _whereabouts(self, kind: str, bare: str) -> str:
        """Say where a name that was not found stands instead, what is nearest to it, and which plugins failed."""
        said = ""
        if others := self._by.get((kind, bare)):  # only the vendor was wrong
            said += (
                f" {bare!r} comes from {listing(c.distribution for c in others)}: say {listing(f'{_vendor(c)}/{bare}' for c in others)}."
            )
        elsewhere = [k for k, n in self._by if n == bare and k != kind]
        if elsewhere:
            said += f" {bare!r} is registered as {listing(elsewhere)}."
        if module := _unlisted(kind, bare):
            said += f" The module {module!r} defines it: name it under plugins, or pass the function in components."
        if told := [] if said else self.called_elsewhere(bare, kind):
            said += f" Elsewhere {listing(repr(c.name) for c in told[:2])} {'goes' if len(told) == 1 else 'go'} by it: see `lossary show {told[0].name}`."
        hint = "" if said and not elsewhere else nearest(bare, self.names(kind))
        if elsewhere or not (hint or said):
            hint += f" Known: {', '.join(self.names(kind)) or 'none'}."
        failed = "".join(f"\n  Plugin {f.plugin!r} ({f.distribution}) did not load: {f.why}" for f in self.failures)
        return said + hint + failed

    def resolve(self, kind: str, use: str | Callable[..., Any]) -> Component:
        """Return what a slot names: a registered name, an import path ``package.module:function``, or a callable itself."""
        if callable(use):
            component = component_of(use) or describe(use, KINDS[kind])
            component = component if component.distribution else replace(component, distribution=SCRIPT)
        elif ":" in use:
            component = replace(_imported(use, kind), distribution=f"module {use.partition(':')[0]}")
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

    def announce(self, event: Mapping[str, Any]) -> None:
        """Tell every plugin's ``lossary_event`` of an event."""
        for manager in self._listeners:
            manager.hook.lossary_event(event=event)


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _vendor(component: Component) -> str:
    """Return what stands before the slash in ``vendor/name``: a distribution without its version, or a plugin's module or file."""
    brought = component.distribution
    if brought == SCRIPT:
        return _hyphens(brought).replace(" ", "-")
    if brought.startswith("plugin "):
        plugin = brought.removeprefix("plugin ")
        return _hyphens(Path(plugin).stem if plugin.endswith(".py") else plugin)
    return _hyphens(brought.partition(" ")[0])


def _managed(plugin: object, name: str, brought: str) -> pluggy.PluginManager:
    """Return a plugin in a manager of its own, so that two plugins may bear one name."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(
            f"plugin {name!r} ({brought}): {error}. Known hooks are {listing(h for h in vars(Hooks) if h[0] != '_')}."
        ) from error
    return manager


def _within(function: Callable[..., Any], plugin: object) -> bool:
    """Say whether a module defines a function, itself or in a module of the package that it is: what it merely imports is not its own."""
    home, house = str(getattr(function, "__module__", "")), str(getattr(plugin, "__name__", ""))
    return home == house or home.startswith(f"{house}.")


def _unlisted(kind: str, name: str) -> str | None:
    """Return a module outside the house that defines a component nobody listed; only a failed look-up pays for this search."""
    for module in list(sys.modules.values()):
        place = str(getattr(module, "__name__", ""))
        if place.partition(".")[0] == __name__.partition(".")[0]:
            continue
        for value in list(getattr(module, "__dict__", {}).values()):
            # type(), for isinstance asks an object for its __class__, and a stranger's may answer with a warning.
            made = component_of(value) if type(value) is FunctionType else None
            if made and made.kind.name == kind and name in (made.name, *made.aliases) and value.__module__ == place:
                return Path(str(module.__file__)).name if place.startswith(_FILE) else place
    return None


def _undecorated(function: Callable[..., Any], plugin: str) -> Component:
    raise SignatureError(f"plugin {plugin!r} offers {function!r}, which carries no lossary decorator.")


def _imported(path: str, kind: str) -> Component:
    name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a stranger's module may raise anything
        raise UnknownName(f"{path!r} cannot be imported: {type(error).__name__}: {error}{_line_in(error)}") from error
    if not hasattr(module, attribute):
        raise UnknownName(f"{path!r}: the module has no {attribute!r}.{nearest(attribute, vars(module))}")
    function = getattr(module, attribute)
    if not callable(function):
        raise UnknownName(f"{path!r} is no function but {type(function).__name__}.")
    return component_of(function) or describe(function, KINDS[kind])


def _load(name: str, folder: Path) -> ModuleType:
    try:
        return _executed(name, folder / name) if name.endswith(".py") else importlib.import_module(name)
    except PluginError:
        raise
    except LossaryError as error:
        raise PluginError(f"plugin {name!r}: {error}") from error
    except (Exception, SystemExit) as error:  # a plugin's module may raise anything
        beside = f" There is a file {name}.py beside the recipe: write {name + '.py'!r}." if (folder / f"{name}.py").is_file() else ""
        raise PluginError(f"plugin {name!r} does not load: {type(error).__name__}: {error}{_line_in(error)}{beside}") from error


def _executed(name: str, path: Path) -> ModuleType:
    if not path.is_file():
        beside = [p.name for p in path.parent.glob("*.py")] if path.parent.is_dir() else []
        raise PluginError(f"plugin {name!r}: there is no file {path}.{nearest(path.name, beside)}")
    # A name of its own for each path, so that equal file names of two recipes do not meet in sys.modules.
    unique = f"{_FILE}{path.stem}_{blake2b(str(path.resolve()).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"plugin {name!r}: {path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[unique]  # as an ordinary import does: half a module is worse than none
        raise
    return module


def _line_in(error: BaseException) -> str:
    """Say where in the plugin's own file it went wrong: the deepest line of the first file that is neither ours nor the importer's."""
    if isinstance(error, SyntaxError):  # it names file and line itself
        return ""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen ")]
    strange = [f for f in frames if f.filename not in (__file__, importlib.__file__) and "pluggy" not in Path(f.filename).parts]
    own = [f for f in strange if f.filename == strange[0].filename]
    return f" (line {own[-1].lineno} of {Path(own[-1].filename).name})" if own else ""


def _installed() -> list[EntryPoint]:
    """Installed plugins in a fixed order: folders are listed by the file system, hence in any order."""
    return sorted(entry_points(group=GROUP), key=lambda e: (e.dist.name if e.dist else "", e.name))
