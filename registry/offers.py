"""What a plugin's hooks offer, read with distrust: whatever they return is checked before anything is taken."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pluggy

from .component import component_of
from .errors import PluginError, listing
from .fields import Column
from .hooks import Hooks
from .selection import GROUP

MOST = 10_000
"""Nobody has more to offer; a generator without an end must not hold up the host."""
_RECIPE = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True)
class Offers:
    """Functions, columns and recipes of one plugin, and its manager, by which it hears of events."""

    functions: tuple[Callable[..., Any], ...]
    columns: tuple[Column, ...]
    recipes: Mapping[str, str]
    manager: pluggy.PluginManager


def offers(plugin: object, name: str, brought: str, *, scan: bool = False, idle: bool = True) -> Offers:
    """Call a plugin's hooks; ``scan``: its module's own functions and columns count too; ``idle``: it may offer nothing at all."""
    who = f"plugin {name!r} ({brought})"
    manager = _managed(plugin, name, who)
    functions = tuple(_listed(manager, "lossary_components", who, "an iterable of decorated functions"))
    columns = tuple(_listed(manager, "lossary_fields", who, "an iterable of column(...)"))
    if wrong := [c for c in columns if not isinstance(c, Column)]:
        raise PluginError(f"{who}: lossary_fields offers {_said(wrong[0])}; expected column(...).")
    recipes = _recipes(manager, who)
    if scan and not functions:
        functions = tuple(f for f in list(vars(plugin).values()) if callable(f) and component_of(f) and _within(f, plugin))
    if scan and not columns:
        columns = tuple(c for c in list(vars(plugin).values()) if isinstance(c, Column))
    if not (idle or functions or columns or manager.get_hookcallers(plugin)):
        wanted = "a decorated function, a column(...) or a hook" if scan else "a hook marked @hookimpl, such as lossary_components"
        raise PluginError(f"{who} offers nothing; expected {wanted}.")
    return Offers(functions, columns, recipes, manager)


def _managed(plugin: object, name: str, who: str) -> pluggy.PluginManager:
    """Return a plugin in a manager of its own, so that two plugins may bear one name."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Hooks)
    try:
        manager.register(plugin, name)
        manager.check_pending()
    except pluggy.PluginValidationError as error:
        raise PluginError(f"{who}: {' '.join(str(error).split())}. Known hooks are {listing(_KNOWN)}.") from error
    return manager


_KNOWN = [f"{h}({', '.join(f.__code__.co_varnames[1 : f.__code__.co_argcount])})" for h, f in vars(Hooks).items() if h[0] != "_"]


def _returned(manager: pluggy.PluginManager, hook: str, who: str) -> list[Any]:
    caller = getattr(manager.hook, hook)
    found: list[Any] = caller()
    if len(found) < sum(not (i.wrapper or i.hookwrapper) for i in caller.get_hookimpls()):
        raise PluginError(f"{who}: {hook} returns nothing; is its `return` missing?")  # pluggy leaves None out
    return found


def _listed(manager: pluggy.PluginManager, hook: str, who: str, wanted: str) -> Iterable[Any]:
    for found in _returned(manager, hook, who):
        if isinstance(found, (str, bytes, Mapping)) or not isinstance(found, Iterable):
            raise PluginError(f"{who}: {hook} returns {_said(found)}; expected {wanted}.")
        items = list(islice(found, MOST + 1))
        if len(items) > MOST:
            raise PluginError(f"{who}: {hook} offers more than {MOST} things.")
        yield from items


def _recipes(manager: pluggy.PluginManager, who: str) -> dict[str, str]:
    recipes: dict[str, str] = {}
    for found in _returned(manager, "lossary_recipes", who):
        if not isinstance(found, Mapping):
            raise PluginError(f"{who}: lossary_recipes returns {_said(found)}; expected {{name: YAML text}}.")
        for key, text in islice(found.items(), MOST):
            if not isinstance(key, str) or not _RECIPE.fullmatch(key):
                raise PluginError(
                    f"{who}: a recipe is called {key!r}; a name has letters, digits, '-', '_', '.' and '+', for a folder bears it."
                )
            if not isinstance(text, str):
                raise PluginError(f"{who}: the recipe {key!r} is {_said(text)}; expected YAML text.")
            recipes[key] = text
    return recipes


def _said(thing: object) -> str:
    """Name a thing without its ``repr``, which a stranger may have written."""
    if callable(thing) and hasattr(thing, "__name__"):
        return f"the function {thing.__name__!r}"
    return repr(thing)[:40] if type(thing) in (int, float, bool, str, type(None)) else f"a {type(thing).__name__}"


def _within(function: Callable[..., Any], plugin: object) -> bool:
    """Say whether a module defines a function, itself or in a module of the package that it is: what it merely imports is not its own."""
    home, house = str(getattr(function, "__module__", "")), str(getattr(plugin, "__name__", ""))
    return home == house or home.startswith(f"{house}.")
