"""``export``: what a framework must be told so that a recipe is what runs there, by our adapter; what it cannot run is refused by name."""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...builtin import catalog
from ...pipeline import Plan, load_recipe
from ...pipeline.build import build
from ...registry import LossaryError, listing, nearest
from .. import trl, verl
from ..gate import require_given
from ..hosted import Hosted
from ..naming import RECIPES

FRAMEWORKS = ("verl", "trl")


@dataclass(frozen=True)
class Exported:
    """Settings for the framework, the environment that carries a file, and what is worth knowing."""

    settings: dict[str, Any]
    environment: dict[str, str]
    notes: tuple[str, ...]


def export(framework: str, recipe: str) -> Exported:
    """Return what to tell ``verl`` or ``trl``; a recipe that it cannot run raises ``IntegrationError``."""
    if framework not in FRAMEWORKS:
        raise LossaryError(f"{framework!r} is nothing to export to.{nearest(framework, FRAMEWORKS)} Known: {listing(FRAMEWORKS)}.")
    plan = build(load_recipe(recipe, more=catalog().recipes()), catalog())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        made = _verl(plan, recipe) if framework == "verl" else _trl(plan, recipe)
    return replace(made, notes=(*plan.warnings, *made.notes, *(str(w.message) for w in said)))


def _verl(plan: Plan, recipe: str) -> Exported:
    file = Path(recipe).suffix in (".yaml", ".yml")
    name = f"lossary/recipe/{Path(recipe).stem if file else recipe}"
    actor = verl.wanted_of_actor(name, plan)
    verl.left_to_recipe(name, plan)
    settings: dict[str, Any] = {"actor_rollout_ref.actor.policy_loss.loss_mode": name}
    settings |= {f"actor_rollout_ref.actor.{k}": v for k, v in actor.items()}
    notes = []
    values = [b for b in plan.advantages if b.component.name == "gae"]
    if values:
        settings |= {"algorithm.adv_estimator": "gae", **{f"algorithm.{k}": values[0].params[k] for k in ("gamma", "lam")}}
        notes.append("GAE is verl's own, which whitens always: verl gives values to no other estimator.")
    elif plan.advantages:
        settings["algorithm.adv_estimator"] = name
        verl.made_by_recipe(name, plan)
    settings |= {f"algorithm.{k}": v for k, v in verl.wanted_of_algorithm(name, plan).items()}
    return Exported(settings, {RECIPES: str(Path(recipe).resolve())} if file else {}, tuple(notes))


def _trl(plan: Plan, recipe: str) -> Exported:
    kl = [t.coefficient for t in plan.terms if t.bound.component.kind.name == "kl"] + [k.coefficient for k in plan.reward_kl]
    beta = next((c.fixed for c in kl if c.fixed is not None), 0.001 if kl else 0.0)
    given = ["log_prob", "entropy", "old_log_prob", "advantages", *(["ref_log_prob"] if kl else []), "rollout_log_prob"]
    trl.require_no_critic(plan)
    hosted = Hosted(plan, "TRL", given, who=trl.WHO, hints=trl.HINTS)
    objective = trl.made_by_recipe(plan)
    if objective is not None:
        require_given(trl.WHO, "TRL", objective.needs("estimate"), trl.GIVEN_TO_ESTIMATORS, trl.HINTS)
    settings: dict[str, Any] = {"beta": beta}
    if "rollout_log_prob" in hosted.objective.needs("estimate"):
        settings |= {"use_vllm": True, "vllm_importance_sampling_correction": False}
    return Exported(settings, {}, (f"LossaryGRPOTrainer(recipe={recipe!r}, args=GRPOConfig(...), ...) instead of GRPOTrainer.",))
