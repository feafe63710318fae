"""From a recipe to a loss."""

from .bound import Bound
from .build import bind, bind_each, build, survey
from .document import Document, part_of, read_yaml, scalar, steps
from .head import LossHead, Scores
from .objective import LossOut, Objective
from .overrides import override_from
from .recipe import Recipe, bundled_recipes, load_recipe
from .terms import Plan
from .vocabulary import Logits

__all__ = [
    "Bound",
    "Document",
    "Logits",
    "LossHead",
    "LossOut",
    "Objective",
    "Plan",
    "Recipe",
    "Scores",
    "bind",
    "bind_each",
    "build",
    "bundled_recipes",
    "load_recipe",
    "override_from",
    "part_of",
    "read_yaml",
    "scalar",
    "steps",
    "survey",
]
