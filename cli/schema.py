"""``lossary schema``."""

import json

from pydantic import BaseModel

from ..builtin import catalog
from ..models.choice import ModelSettings
from ..models.reference import ReferenceSettings
from ..pipeline import load_recipe, survey
from ..pipeline.schema import component_schema, recipe_schema
from ..registry import KINDS, RecipeError, UnknownName, listing, nearest
from ..trainer.settings import (
    CriticSettings,
    DiagnoseSettings,
    EvaluateSettings,
    RolloutSettings,
    TrainSettings,
    WarmUpSettings,
)

TRAINING: dict[str, type[BaseModel]] = {
    "model": ModelSettings,
    "critic": CriticSettings,
    "reference": ReferenceSettings,
    "warm_up": WarmUpSettings,
    "rollout": RolloutSettings,
    "train": TrainSettings,
    "evaluate": EvaluateSettings,
    "diagnose": DiagnoseSettings,
}


def print_schema(name: str | None, recipe: str | None) -> None:
    """Print the schema of a recipe, or of one component; with ``recipe`` that recipe's own plugins are in it."""
    book = catalog()
    if recipe is not None:
        _, book, faults = survey(load_recipe(recipe, more=book.recipes()), book)
        if broken := [f for f in faults if f.path.partition(".")[0] == "plugins"]:
            raise RecipeError(broken)
    if name is None:
        print(json.dumps(recipe_schema(book, TRAINING), indent=1))
        return
    kind, _, bare = name.partition("/")
    kind = kind.replace("-", "_")
    if bare and kind in KINDS:
        found = [book.get(kind, bare)]
    else:
        held = [k for k in KINDS if name.replace("_", "-").rpartition("/")[2] in book.names(k)]
        found = [book.get(k, name) for k in held]
    if not found:
        raise UnknownName(f"No component is called {name!r}.{nearest(name, {n for k in KINDS for n in book.names(k)})}")
    if len(found) > 1:
        raise UnknownName(f"{name!r} is several components: say {listing(f'{c.kind.name}/{c.name}' for c in found)}.")
    print(json.dumps(component_schema(found[0], book), indent=1))
