"""verl: our losses as loss modes, our advantage estimators as estimators.

verl hands a policy loss four padded columns and its own counts of the step; KL and entropy it adds itself, so what a recipe says of them
must be what verl is told, or the run stops with the overrides that would make it so.
"""

import importlib
import logging
import os
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

from torch import Tensor

from ..builtin import RecipeWarning
from ..pipeline import Objective, Plan
from .gate import IntegrationError, require_given, require_version
from .hosted import Hosted, estimated
from .naming import Offer, offer, offers

GIVEN = ("log_prob", "old_log_prob", "advantages")
GIVEN_TO_ESTIMATORS = ("token_rewards", "rewards", "group_ids", "baseline_rewards")
HINTS = {
    "rollout_log_prob": "verl corrects by itself: algorithm.rollout_correction, whose weights reach every loss mode of ours.",
    "ref_log_prob": "verl adds a KL of its own: actor.use_kl_loss=True.",
    "entropy": "verl adds the entropy by itself: actor.entropy_coeff.",
    "old_values": "verl gives values only to its own algorithm.adv_estimator=gae.",
    "old_log_prob": "verl takes a KL from the reward by itself: algorithm.use_kl_in_reward=True.",
}
KL_NAMES = {"k1": "kl", "k2": "mse", "k3": "low_var_kl", "abs": "abs"}
"""What verl calls our KL estimators."""
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


class PolicyLoss:
    """One loss mode, in verl's signature. Known by its name alone, so that it is the same in every process."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(
        self,
        old_log_prob: Tensor,
        log_prob: Tensor,
        advantages: Tensor,
        response_mask: Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the scalar that verl steps on and metrics as floats."""
        if config is None:
            raise IntegrationError(f"{self.name}: verl must pass its actor's config.")
        known = dict(config.global_batch_info)
        ranks, tokens, rows = known.get("dp_size") or 1, known.get("batch_num_tokens"), known.get("global_batch_size")
        if ranks > 1 and (tokens is None or rows is None):
            raise IntegrationError(f"{self.name}: on {ranks} ranks verl must say batch_num_tokens and global_batch_size.")
        out, metrics = hosted(self.name, loss_agg_mode, config).loss(
            response_mask,
            log_prob=log_prob,
            old_log_prob=old_log_prob,
            advantages=advantages,
            tokens=tokens,
            sequences=rows,
            weight=rollout_is_weights,
            times=int(ranks),
        )
        told = {k: v for k, v in metrics.items() if k.startswith("actor/") and k not in ("actor/loss", "actor/pg_loss")}
        return out.actor, told


def hosted(name: str, loss_agg_mode: str, config: Any) -> Hosted:
    """Return what a loss mode runs under an actor's config, made once for each way the config reads."""
    found = offer("policy_loss", name)
    said = {} if found.component is None else _settings(found, config)
    plan = _plan(name, found.recipe, tuple(sorted(said.items())), loss_agg_mode, getattr(config, "loss_scale_factor", None))
    if found.component is None:
        _require_same_terms(name, plan, loss_agg_mode, config)
    return _hosted(name, found.recipe, tuple(sorted(said.items())), loss_agg_mode, getattr(config, "loss_scale_factor", None))


@cache
def _plan(name: str, recipe: str, said: tuple[tuple[str, Any], ...], mode: str, factor: float | None) -> Plan:
    aggregation: Any = mode
    if mode == "seq-mean-token-sum-norm":
        if factor is None:
            raise IntegrationError(
                f"{name}: say actor.loss_scale_factor; without it verl divides by the padded width of a micro-batch, which depends on the cut."
            )
        aggregation = {"use": mode, "loss_scale_factor": factor}
    plan = offer("policy_loss", name).plan(dict(said), aggregation)
    for sentence in plan.warnings:
        warnings.warn(f"{name}: {sentence}", RecipeWarning, stacklevel=2)
    return plan


@cache
def _hosted(name: str, recipe: str, said: tuple[tuple[str, Any], ...], mode: str, factor: float | None) -> Hosted:
    return left_to_recipe(name, _plan(name, recipe, said, mode, factor))


def left_to_recipe(name: str, plan: Plan) -> Hosted:
    """Return the terms that verl does not add by itself; one that it cannot feed raises ``IntegrationError``."""
    ours = tuple(t for t in plan.terms if t.role == "actor" and t.name != "entropy" and t.bound.component.kind.name != "kl")
    for t in ours:
        if t.coefficient.bound is not None:
            raise IntegrationError(f"{name}: verl does not tell a loss of its steps, so the coefficient of {t.name!r} would never move.")
    if value := [t for t in plan.terms if t.role == "critic"]:
        warnings.warn(f"{name}: the value loss {value[0].bound.component.name!r} is left to verl's critic.*", RecipeWarning, stacklevel=2)
    return Hosted(replace(plan, terms=ours), "verl", GIVEN, who=name, hints=HINTS)


def _settings(found: Offer, config: Any) -> dict[str, Any]:
    """Return a component's hyperparameters as far as verl's actor has a setting of the same name."""
    assert found.component is not None
    out = {}
    for name in found.component.params.model_fields:
        for place in (getattr(config, "policy_loss", None), config):
            value = getattr(place, name, None)
            if value is not None:
                out[name] = value
                break
    return out


def wanted_of_actor(name: str, plan: Plan) -> dict[str, Any]:
    """Return what verl's actor must be told of the terms that it adds by itself, so that the recipe is what runs."""
    policy = next((t for t in plan.terms if t.name == "policy"), None)
    if policy is None:
        raise IntegrationError(f"{name}: this recipe has no policy_loss; verl has loss functions of its own for such training.")
    aggregation = plan.aggregations[policy.aggregation]
    wanted: dict[str, Any] = {"loss_agg_mode": aggregation.component.name}
    if wanted["loss_agg_mode"] not in MODES:
        raise IntegrationError(f"{name}: verl has no loss_agg_mode {wanted['loss_agg_mode']!r}.")
    if (factor := aggregation.params.get("loss_scale_factor")) is not None:
        wanted["loss_scale_factor"] = factor
    wanted["entropy_coeff"] = next((_fixed(name, t) for t in plan.terms if t.name == "entropy"), 0)
    kl = [t for t in plan.terms if t.bound.component.kind.name == "kl"]
    wanted["use_kl_loss"] = bool(kl)
    if kl:
        if len(kl) > 1 or kl[0].bound.component.name not in KL_NAMES:
            raise IntegrationError(f"{name}: verl has no KL like {kl[-1].bound.component.name!r}.")
        wanted |= {"kl_loss_coef": _fixed(name, kl[0]), "kl_loss_type": KL_NAMES[kl[0].bound.component.name]}
        if kl[0].bound.component.name == "k3" and kl[0].bound.params.get("cap") != 10:
            warnings.warn(f"{name}: verl clamps its low_var_kl at 10, which the recipe does not.", RecipeWarning, stacklevel=3)
    for t in plan.terms:
        own = plan.aggregations[t.aggregation]
        if (
            t.role == "actor"
            and (t.name == "entropy" or t in kl)
            and (own.component, own.params) != (aggregation.component, aggregation.params)
        ):
            raise IntegrationError(f"{name}: verl averages {t.name!r} like the policy loss, not by {own.component.name!r}.")
    return wanted


def _require_same_terms(name: str, plan: Plan, mode: str, config: Any) -> None:
    """Raise ``IntegrationError`` where the recipe and verl's config say different things of what verl does itself."""
    wanted = wanted_of_actor(name, plan)
    there = {"loss_agg_mode": mode} | {k: getattr(config, k, None) for k in wanted if k != "loss_agg_mode"}
    if (said := str(there.get("kl_loss_type"))) in KL_NAMES:  # k1, k2, k3: other names of the same
        there["kl_loss_type"] = KL_NAMES[said]
    if differ := [k for k in wanted if there[k] != wanted[k]]:
        say = " ".join(f"actor_rollout_ref.actor.{k}={wanted[k]}" for k in differ)
        raise IntegrationError(f"{name}: the recipe and verl's config differ in what verl does itself; say {say}")


def _fixed(name: str, term: Any) -> float:
    if term.coefficient.fixed is None:
        raise IntegrationError(f"{name}: verl has no changing coefficient for {term.name!r}.")
    return float(term.coefficient.fixed)


class Advantage:
    """One advantage estimator, in verl's signature."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        config: Any = None,
        index: Any = None,
        reward_baselines: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return padded advantages and returns, 0 wherever no sampled token was."""
        objective = estimating(self.name, config)
        return estimated(objective, response_mask, token_level_rewards, index, baseline_rewards=reward_baselines)


def estimating(name: str, config: Any) -> Objective:
    """Return the objective that makes the advantages of an estimator under verl's algorithm config."""
    found = offer("advantage", name)
    settings: dict[str, Any] = {}
    if found.component is not None:
        known = found.component.params.model_fields
        settings = {k: getattr(config, k) for k in ("gamma", "lam") if k in known and getattr(config, k, None) is not None}
    plan = found.plan(settings)
    if found.component is None:
        _require_same_reward(name, plan, config)
    return made_by_recipe(name, plan)


def made_by_recipe(name: str, plan: Plan) -> Objective:
    """Return what makes a recipe's advantages from the columns that verl gives to an estimator."""
    if not plan.advantages:
        raise IntegrationError(f"{name}: this recipe has no section 'advantage'.")
    if plan.filters:
        raise IntegrationError(
            f"{name}: verl's estimators keep every row; its own algorithm.filter_groups stands for the section 'filter'."
        )
    objective = Objective(replace(plan, terms=(), corrections=(), reward_kl=()))
    require_given(name, "verl", objective.needs("estimate"), GIVEN_TO_ESTIMATORS, HINTS)
    return objective


def wanted_of_algorithm(name: str, plan: Plan) -> dict[str, Any]:
    """Return what verl's algorithm must be told of the KL that it takes from rewards by itself."""
    if not plan.reward_kl:
        return {"use_kl_in_reward": False}
    kl = plan.reward_kl[0]
    kind, steered = kl.bound.component.name, kl.coefficient.bound
    if len(plan.reward_kl) > 1 or kind not in KL_NAMES or (steered is not None and steered.component.name != "adaptive-kl"):
        raise IntegrationError(f"{name}: verl takes no KL like {kind!r} with this coefficient from rewards.")
    wanted: dict[str, Any] = {"use_kl_in_reward": True, "kl_penalty": KL_NAMES[kind]}
    if steered is None:
        return {**wanted, "kl_ctrl.type": "fixed", "kl_ctrl.kl_coef": kl.coefficient.fixed}
    p = steered.params
    adaptive = {"type": "adaptive", "kl_coef": p["kl_coef"], "target_kl": p["target"], "horizon": p["horizon"]}
    return {**wanted, **{f"kl_ctrl.{k}": v for k, v in adaptive.items()}}


def _require_same_reward(name: str, plan: Plan, config: Any) -> None:
    def there(path: str) -> Any:
        found = config
        for step in path.split("."):
            found = getattr(found, step, None)
        return KL_NAMES.get(str(found), found) if path == "kl_penalty" else found

    wanted = wanted_of_algorithm(name, plan)
    if differ := [k for k in wanted if there(k) != wanted[k] and (wanted[k] is not False or there(k))]:
        say = " ".join(f"algorithm.{k}={wanted[k]}" for k in differ)
        raise IntegrationError(f"{name}: the recipe and verl's config differ in the KL that verl takes from rewards; say {say}")


def register() -> list[str]:
    """Enter everything into verl's registries; a name that another package took raises ``IntegrationError``. Returns the loss modes."""
    require_version("verl")
    algos = importlib.import_module("verl.trainer.ppo.core_algos")
    losses, estimators = offers("policy_loss"), offers("advantage")
    for kind, book, ours in ((PolicyLoss, algos.POLICY_LOSS_REGISTRY, losses), (Advantage, algos.ADV_ESTIMATOR_REGISTRY, estimators)):
        for name in ours:
            if name in book and not isinstance(book[name], kind):
                raise IntegrationError(f"verl already has {name!r}, of {getattr(book[name], '__module__', book[name])}.")
            enter = algos.register_policy_loss if kind is PolicyLoss else algos.register_adv_est
            if name not in book:
                enter(name)(kind(name))
    return list(losses)


def register_or_say() -> None:
    """Register, and say loudly what went wrong: verl notes a plugin's error at DEBUG and goes on, until a name is not found."""
    try:
        register()
    except Exception as error:
        logging.getLogger("lossary").error("no loss mode lossary/... is registered in verl: %s", error, exc_info=True)
        if os.environ.get("LOSSARY_STRICT") == "1":
            raise SystemExit(f"lossary: {error}") from error  # no Exception, so that it is not swallowed
        raise
