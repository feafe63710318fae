"""A recipe: which components an objective is made of, still as it was written."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib.resources import files
from os import environ
from os.path import exists, isdir, isfile  # unlike those of Path they are content with any text
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ..registry import Fault, LossaryError, Place, RecipeError, faults_of, file_inside, listing, nearest
from .document import Document, from_values, read_yaml, steps
from .hinting import ALL, no_training_key
from .layers import on_its_base
from .overrides import override, override_by_value, set_by_environment


class Recipe:
    """The written choice: values with places, its name, and the folder that its plugins are relative to."""

    def __init__(self, document: Document, name: str, folder: Path) -> None:
        self.document, self.name, self.folder = document, name, folder

    @property
    def values(self) -> Mapping[str, Any]:
        """The sections."""
        return self.document.values

    @property
    def variables(self) -> list[str]:
        """The environment variables that a value of this recipe came from, as ``$NAME``."""
        return sorted({place.source for place in self.document.places.values() if place.origin == "environment"})

    def text(self) -> str:
        """Return the recipe as YAML, callables by import path; in another folder it means the same with ``code`` beside it."""

        def plain(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {k: plain(v) for k, v in value.items()}
            if isinstance(value, list):
                return [plain(v) for v in value]
            return _import_path(value) if callable(value) else value

        values = plain(self.values)
        if isinstance(values.get("plugins"), list):
            values["plugins"] = [self._within(p) for p in values["plugins"]]
        return yaml.safe_dump(values, sort_keys=False)

    def code(self) -> dict[str, bytes]:
        """Return the plugin files that the recipe names, by their paths in its folder: a run keeps the code that it began with."""
        names = self.values.get("plugins")
        files = {self._within(p) for p in (names if isinstance(names, list) else ()) if isinstance(p, str) and p.endswith(".py")}
        return {p: file_inside(self.folder, p).read_bytes() for p in sorted(files)}

    def _within(self, plugin: Any) -> Any:
        """Return a plugin file's path in the recipe's folder; whatever is none stays as it is."""
        if not isinstance(plugin, str) or not plugin.endswith(".py"):
            return plugin
        path, home = Path(os.path.normpath(self.folder / plugin)), Path(os.path.normpath(self.folder))
        return path.relative_to(home).as_posix() if path.is_relative_to(home) else plugin

    def section(self, name: str, model: type[BaseModel], faults: list[Fault]) -> Any:
        """Return a section as a pydantic model; what is wrong with it goes to ``faults``, and None is returned."""
        raw = self.values.get(name)
        raw = {} if raw is None else raw
        if not isinstance(raw, dict):
            faults.append(Fault(name, self.document.place((name,)), f"expected a mapping with {listing(model.model_fields)}"))
            return None
        found = faults_of(model, raw)
        for key, message in found:
            path: tuple[str | int, ...] = (name, *steps(raw, key))
            if message.startswith("unknown key.") and len(path) == 2:
                message = no_training_key(message, key, name)
            faults.append(Fault(".".join(map(str, path)), self.document.place(path), message))
        return None if found else model.model_validate(raw)


def _import_path(function: Any) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "<")
    if module in (None, "__main__") or "<" in name:
        raise LossaryError(
            f"{function!r} has no import path, so the recipe cannot be written down; define it in a module or a plugin file."
        )
    return f"{module}:{name}"


def bundled_recipes() -> dict[str, str]:
    """Return the text of every recipe in the box, by name."""
    folder = files("lossary") / "recipes"
    return {
        p.name.removesuffix(".yaml"): p.read_text("utf-8")
        for p in sorted(folder.iterdir(), key=lambda p: p.name)
        if p.name.endswith(".yaml")
    }


def load_recipe(
    recipe: "str | Path | Mapping[str, Any] | Recipe",
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    environment: bool | Mapping[str, str] = False,
    more: Mapping[str, list[tuple[str, str]]] | None = None,
) -> Recipe:
    """Read a bundled recipe's name, a path or a dict, and apply what is said elsewhere: first the environment, then ``overrides``.

    ``overrides`` are texts ``a.b=value``, read like values in a file, or ``{"a.b": value}``, taken as they are. ``environment=True``
    reads variables such as ``LOSSARY_SET__KL__COEF`` (a mapping: only these), as every command does; without it no variable is looked at.
    ``more`` holds recipes that plugins brought. A file or name that is not there raises ``RecipeError``; faults of the text itself are
    kept and raised by ``compose`` together with all others.
    """
    if isinstance(recipe, Recipe):
        old, name, folder = recipe.document, recipe.name, recipe.folder
        document = replace(old, values=from_values(old.values, old.source).values, places=dict(old.places), faults=list(old.faults))
    elif isinstance(recipe, Mapping):
        document, name, folder = from_values(recipe, "recipe"), "recipe", Path.cwd()
    else:
        document, name, folder = _read(str(recipe), more or {})
    document = on_its_base(document, folder, lambda said: _read(said, more or {}))
    if environment:
        set_by_environment(document, environ if environment is True else environment)
    if isinstance(overrides, Mapping):
        for path, value in overrides.items():
            override_by_value(document, str(path), value)
    else:
        for assignment in [overrides] if isinstance(overrides, str) else overrides:
            override(document, assignment)
    for key in [k for k, value in document.values.items() if value is None and k in ALL]:
        if document.place((key,)).origin in ("environment", "override"):
            del document.values[key]  # null in a file is a slip; here it is the one way to take a section out
    return Recipe(document, name, folder)


def _read(said: str, more: Mapping[str, list[tuple[str, str]]]) -> tuple[Document, str, Path]:
    if "\n" in said:
        raise RecipeError([Fault("", Place(f"{said[:20]!r}..."), "this is text, not a name or a path; a recipe in Python is a dict.")])
    if len(said) > 1000:
        raise RecipeError([Fault("", Place(f"{said[:20]!r}..."), "too long for a name or a path.")])
    path = Path(said)
    if isdir(path) and not {said, said.rpartition("/")[2]} & {*bundled_recipes(), *more}:
        raise RecipeError([Fault("", Place(said), f"is a folder.{nearest(said, [str(p) for p in path.glob('*.y*ml')])}")])
    if exists(path) and not isfile(path) and not isdir(path):
        raise RecipeError([Fault("", Place(said), "is no ordinary file but a pipe or a device; write the recipe into a file.")])
    if path.suffix in {".yaml", ".yml"} or isfile(path):
        if not isfile(path):
            beside = [p.name for p in path.parent.glob("*.y*ml")] if isdir(path.parent) else []
            raise RecipeError([Fault("", Place(said), f"there is no such file.{nearest(path.name, beside)}")])
        try:
            return read_yaml(path.read_text("utf-8-sig"), said), path.stem, path.resolve().parent
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError([Fault("", Place(said), f"cannot be read: {error}")]) from error
    box = bundled_recipes()
    vendor, _, bare = said.rpartition("/")
    brought = [*([("lossary", box[bare])] if bare in box else []), *more.get(bare, [])]
    found = [(b, t) for b, t in brought if not vendor or b.partition(" ")[0] == vendor]
    if len(found) == 1:
        (who, text), ours = found[0], found[0][0] == "lossary"
        return read_yaml(text, f"{bare}.yaml" if ours else f"{who}: {bare}"), bare, Path.cwd()
    if found:
        ways = listing(f"{b.partition(' ')[0]}/{bare}" for b, _ in found)
        raise RecipeError([Fault("", Place(said), f"the recipe comes from {listing(b for b, _ in found)}; say {ways}.")])
    hint = nearest(said, (*box, *more)) or f" Bundled: {listing(box)}."
    raise RecipeError([Fault("", Place(said), f"no recipe has this name.{hint} A file is named by its path, as in ./{said}.yaml.")])
