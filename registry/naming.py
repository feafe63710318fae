"""What a component may be called, and what may be one at all: a recipe must be able to say it, and calling it must give its result."""

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from .errors import SignatureError

_VALUE = re.compile(r"null|true|false|[-+]?[0-9]+(e[-+]?[0-9]+)?|0o[0-7]+|0x[0-9a-f]+", re.IGNORECASE)
_MADE = ("task", "tracker")
"""Kinds whose function makes an object: a class does that too."""


def checked_names(name: str | None, aliases: Iterable[str], where: str) -> tuple[str, ...]:
    """Return aliases with hyphens; a name that no recipe could say raises ``SignatureError``."""
    if isinstance(aliases, str) or not isinstance(aliases, Iterable):
        raise SignatureError(f'{where}: aliases and claims are tuples of names; write ("name",) for a single one.')
    also = tuple(aliases)
    for what, said in [("name", name)] * (name is not None) + [("alias", a) for a in also]:
        _check_name(what, said, where)
    return tuple(a.replace("_", "-") for a in also)


def _check_name(what: str, name: Any, where: str) -> None:
    if not isinstance(name, str):
        raise SignatureError(f"{where}: the {what} {name!r} is no text; write it in quotation marks.")
    if not name:
        raise SignatureError(f"{where}: the {what} {name!r} is empty; say how a recipe calls it, or leave it out.")
    if set(name) & set("/:. "):
        raise SignatureError(f"{where}: the {what} {name!r} holds a slash, a colon, a dot or a space, which mean something in a recipe.")
    if _VALUE.fullmatch(name):
        raise SignatureError(f"{where}: the {what} {name!r} is a value in YAML, so no recipe could say it; choose a word.")
    if not ("_" + re.sub("[-+]", "_", name)).isidentifier():
        raise SignatureError(f"{where}: the {what} {name!r} holds more than letters, digits, '-', '_' and '+'.")


def check_callable(function: Callable[..., Any], kind: str, where: str) -> None:
    """Refuse what gives no result when it is called: coroutines and generators, and classes of kinds that make no object."""
    if isinstance(function, type) and kind not in _MADE:
        raise SignatureError(f"{where} is a class, and calling it would give an object of it; decorate a function.")
    plain = function.func if isinstance(function, partial) else function
    body = plain if inspect.isroutine(plain) or isinstance(plain, type) else getattr(type(plain), "__call__", plain)  # noqa: B004
    if inspect.iscoroutinefunction(body):
        raise SignatureError(f"{where} is an async function, and calling it gives a coroutine; write a plain def.")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise SignatureError(f"{where} is a generator function, for it has a `yield`; return the result.")
