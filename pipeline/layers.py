"""A recipe that builds on another: ``base: grpo`` takes in all its sections, and what stands here changes or replaces them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from ..registry import Fault, RecipeError
from .document import Document, Path_, said

Read = Callable[[str], tuple[Document, str, Path]]
_DEEPEST = 10


def on_its_base(document: Document, folder: Path, read: Read, seen: tuple[str, ...] = ()) -> Document:
    """Return the document with the sections of its ``base``: a mapping without ``use`` changes what stands there, all else replaces it.

    A base is a bundled name, ``vendor/name``, or a file beside the recipe or below it. Whatever is wrong with it is a fault of the key.
    """
    if "base" not in document.values:
        return document
    name, place = document.values["base"], document.place(("base",))
    own = replace(document, values={k: v for k, v in document.values.items() if k != "base"})
    if not isinstance(name, str) or not name:
        own.faults.append(Fault("base", place, f"expected the name of a recipe or a file beside this one; it is {said(name)}"))
        return own
    file = name.endswith((".yaml", ".yml"))
    leaves = file and (PurePath(name).is_absolute() or ".." in PurePath(name).parts or not _inside(folder, name))
    if leaves:
        own.faults.append(Fault("base", place, f"{name!r} leaves the recipe's folder; a base stands beside its recipe or below it"))
        return own
    where = str((folder / name).resolve()) if file else name
    if where in seen or len(seen) >= _DEEPEST:
        own.faults.append(
            Fault("base", place, f"{name!r} builds on itself" if where in seen else f"more than {_DEEPEST} bases, one on the other")
        )
        return own
    try:
        below, _, home = read(str(folder / name) if file else name)
    except RecipeError as error:
        own.faults += [
            Fault("base", place, f"{f.place}: {f.message}" if str(f.place) != name else f"{name!r}: {f.message}") for f in error.faults
        ]
        return own
    if below.origin == "file":
        below.origin = "base"
        below.places = {path: replace(p, origin="base") for path, p in below.places.items()}
    below = on_its_base(below, home, read, (*seen, where))
    if file and isinstance(plugins := below.values.get("plugins"), list):
        below.values["plugins"] = [_moved(p, home, folder) for p in plugins]
    return _merged(below, own)


def _inside(folder: Path, name: str) -> bool:
    """Say whether a file lies in a folder, with every link followed."""
    try:
        return (folder / name).resolve().is_relative_to(folder.resolve())
    except (OSError, ValueError, RuntimeError):  # a name that no file may bear, or links in a circle: reading it will say which
        return True


def _moved(plugin: Any, home: Path, folder: Path) -> Any:
    """Return a plugin file of a base as the recipe on it would name it."""
    inside = isinstance(plugin, str) and plugin.endswith(".py") and home.is_relative_to(folder)
    return str(home.relative_to(folder) / plugin) if inside else plugin


def _merged(below: Document, own: Document) -> Document:
    made = replace(
        own, values=dict(below.values), places=dict(below.places), faults=[*below.faults, *own.faults], unread=below.unread | own.unread
    )
    _lay(made, made.values, own.values, ())
    for path, place in own.places.items():
        made.places[path] = place
    return made


def _lay(document: Document, there: dict[str, Any], upon: Mapping[str, Any], path: Path_) -> None:
    for key, value in upon.items():
        here = (*path, key)
        old = there.get(key)
        if isinstance(old, str) and isinstance(value, Mapping) and "use" not in value:
            document.places[(*here, "use")] = document.place(here)
            old = {"use": old}
        if isinstance(old, Mapping) and isinstance(value, Mapping) and "use" not in value:
            there[key] = dict(old)
            _lay(document, there[key], value, here)
            continue
        for gone in [p for p in document.places if p[: len(here)] == here]:
            del document.places[gone]
        if value is None and not path and key in there and here not in document.unread:
            del there[key]
        else:
            there[key] = value
