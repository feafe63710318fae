"""Where the house is put together: the one file that imports every built-in component."""

import warnings
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from . import aggregators, algorithms, estimators, tasks, trackers
from .batch import ONE_RANK, Ranks
from .diagnostics.interrogable import Interrogable
from .pipeline import Recipe, build, load_recipe
from .registry import Catalog, Column, LossaryError, PluginWarning, Selection

BUILTIN = (algorithms, estimators, aggregators, tasks, trackers)


class RecipeWarning(UserWarning):
    """A recipe does something that its components are not made for."""


def catalog() -> Catalog:
    """Return the built-in components and those of the installed plugins that the environment lets in: built once per process.

    A plugin that does not load is named in a ``PluginWarning`` and breaks nothing else; with ``LOSSARY_STRICT=1`` it raises.
    """
    return _catalog(Selection.of_environment())


@cache
def _catalog(selection: Selection) -> Catalog:
    if _building.get():
        raise LossaryError(
            "the catalog is asked for while it is being built: a plugin's module may not call compose or catalog when imported."
        )
    token = _building.set(True)
    try:
        book = Catalog.load(BUILTIN, selection=selection)
    finally:
        _building.reset(token)
    for failure in book.failures:
        told = f"{str(failure).rstrip('.')}. `lossary plugins -v` shows the traceback; LOSSARY_BLOCK={failure.plugin} keeps it out."
        warnings.warn(told, PluginWarning, stacklevel=3)
    for note in book.notes:
        if not note.startswith("blocked: "):
            warnings.warn(note, PluginWarning, stacklevel=3)
    return book


_building: ContextVar[bool] = ContextVar("building", default=False)


def compose(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    overrides: Iterable[str] | Mapping[str, Any] = (),
    *,
    components: Iterable[Callable[..., Any]] = (),
    columns: Iterable[Column] = (),
    ranks: Ranks | None = None,
    seed: int = 0,
    compile: bool | None = None,
) -> Interrogable:
    """Turn a bundled recipe's name, a path or a dict into an objective.

    ``overrides`` are ``"policy_loss.clip_ratio_high=0.3"`` or ``{"policy_loss.clip_ratio_high": 0.3}``; the environment is read only by
    ``load_recipe(..., environment=True)``, whose result may stand for ``recipe``. ``components`` and ``columns`` add functions and columns of your own;
    ``ranks`` tells the step of other processes; ``seed`` is what random selections are drawn from; ``compile`` overrules the
    recipe's ``compile``: one graph for all terms, which takes half a minute to make the first time. All faults of the recipe are raised
    at once as ``RecipeError``; settings that are allowed but hardly meant give a ``RecipeWarning``.
    """
    book = catalog()
    functions, own = list(components), list(columns)
    if functions or own:
        book = book.extended(functions, own)
    plan = build(load_recipe(recipe, overrides, more=book.recipes()), book)
    for sentence in plan.warnings:
        warnings.warn(sentence, RecipeWarning, stacklevel=2)
    if compile is not None:
        plan = replace(plan, compile=compile)
    return Interrogable(plan, ONE_RANK if ranks is None else ranks, seed=seed)
