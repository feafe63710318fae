"""From a recipe to a loss."""

from .build import bind, build, survey
from .document import Document, read_yaml, scalar
from .objective import LossOut, Objective
from .recipe import Recipe, bundled_recipes, load_recipe
from .terms import Plan
from .vocabulary import Logits

__all__ = [
    "Document",
    "Logits",
    "LossOut",
    "Objective",
    "Plan",
    "Recipe",
    "bind",
    "build",
    "bundled_recipes",
    "load_recipe",
    "read_yaml",
    "scalar",
    "survey",
]
