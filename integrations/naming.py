"""What a framework sees of us by name: ``lossary/<component>`` and ``lossary/<recipe>``.

Where a component and a recipe share a name, the plain one is the component; ``lossary/recipe/<name>`` is the recipe in any case. Recipes
of one's own are files in the environment variable ``LOSSARY_RECIPES``, separated like those of ``PATH``: every worker process hears it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..builtin import catalog
from ..pipeline import Plan, bundled_recipes, load_recipe
from ..pipeline.build import build
from ..registry import Component, RecipeError, UnknownName, listing, nearest
from .gate import IntegrationError

RECIPES = "LOSSARY_RECIPES"
KINDS = ("policy_loss", "advantage")


@dataclass(frozen=True)
class Offer:
    """One name: a component on its own, or a whole recipe (``recipe``: its name or path)."""

    name: str
    component: Component | None = None
    recipe: str = ""

    def plan(self, settings: Mapping[str, Any], aggregation: Any = "token-mean") -> Plan:
        """Return what it runs; ``settings`` are the host's for a component, whose own defaults hold otherwise. A recipe says all itself."""
        book = catalog()
        if self.component is None:
            return build(load_recipe(self.recipe, more=book.recipes()), book)
        slot = {"use": self.component.name, **settings}
        values = {"policy_loss": "reinforce", self.component.kind.name: slot, "aggregation": aggregation}
        try:
            return build(load_recipe(values), book)
        except RecipeError as error:
            raise IntegrationError(f"{self.name}: " + "; ".join(f"{f.path}: {f.message}" for f in error.faults)) from error


def offers(kind: str) -> dict[str, Offer]:
    """Return everything that may stand for a policy loss or an advantage estimator, by the name that a framework sees."""
    book = catalog()
    found: dict[str, Offer] = {}
    for said, recipe in _recipes().items():
        for name in (f"lossary/{said}", f"lossary/recipe/{said}"):
            found[name] = Offer(name, recipe=recipe)
    for c in book:
        if c.kind.name == kind:
            found[f"lossary/{c.name}"] = Offer(f"lossary/{c.name}", c)
    return found


def offer(kind: str, name: str) -> Offer:
    """Return one of ``offers``; an unknown name raises ``UnknownName`` with the nearest."""
    found = offers(kind)
    if name not in found:
        raise UnknownName(f"{name!r} is neither a {kind} nor a recipe.{nearest(name, found)}")
    return found[name]


def _recipes() -> dict[str, str]:
    """Return recipes by name: those in the box, those of plugins, those that the environment names."""
    found = {name: name for name in bundled_recipes()}
    found |= {name: name for name, brought in catalog().recipes().items() if len(brought) == 1 and name not in found}
    for said in filter(None, os.environ.get(RECIPES, "").split(os.pathsep)):
        path = Path(said)
        if not path.is_file():
            raise IntegrationError(f"{RECIPES} names {said!r}, which is no file.")
        if path.stem in found:
            raise IntegrationError(f"{RECIPES}: {said!r} is called like another recipe; there are {listing(found)}.")
        found[path.stem] = str(path)
    return found
