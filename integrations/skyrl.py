"""SkyRL: ``register()`` in the entry script, before Ray starts, and every loss of ours is a ``policy_loss_type``.

SkyRL divides the advantages by its reduction and adds a loss up. So ours is the sum of its tokens, and a loss that is not proportional to the
advantages is refused: of it SkyRL's division would reach only a part. KL, entropy and corrections are SkyRL's own.
"""

import importlib
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..builtin import RecipeWarning
from ..pipeline import Objective, Plan
from .gate import IntegrationError, require_given, require_version
from .hosted import Hosted, estimated
from .naming import offer, offers

GIVEN = ("log_prob", "old_log_prob", "rollout_log_prob", "advantages")
GIVEN_TO_ESTIMATORS = ("token_rewards", "rewards", "group_ids", "old_values")
HINTS = {"ref_log_prob": "SkyRL adds a KL of its own: use_kl_loss.", "group_ids": "SkyRL's losses do not see which prompt a row answers."}
SUM: dict[str, Any] = {"use": "token-sum"}


class PolicyLoss:
    """One loss in SkyRL's signature; pickled by its name, so that workers make it from their own catalog."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(
        self,
        log_probs: Tensor,
        old_log_probs: Tensor,
        advantages: Tensor,
        config: Any = None,
        loss_mask: Tensor | None = None,
        rollout_logprobs: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, float]]:
        """Return the sum over sampled tokens, of advantages that SkyRL divided, and metrics."""
        mask = torch.ones_like(log_probs) if loss_mask is None else loss_mask
        weight, told = _correction(config, old_log_probs, rollout_logprobs, mask)
        out, metrics = hosted(self.name, _settings(self.name, config)).loss(
            mask > 0,
            log_prob=log_probs,
            old_log_prob=old_log_probs,
            advantages=advantages * mask if loss_mask is not None and loss_mask.is_floating_point() else advantages,
            rollout_log_prob=rollout_logprobs,
            weight=weight,
        )
        named = {k.removeprefix("actor/").replace("pg_clipfrac", "clip_ratio"): v for k, v in metrics.items() if k.startswith("actor/")}
        return out.actor, {**{k: v for k, v in named.items() if k not in ("loss", "pg_loss")}, **told}


def _correction(config: Any, old: Tensor, sampled: Tensor | None, mask: Tensor) -> tuple[Tensor | None, dict[str, float]]:
    """Return what SkyRL's own off-policy correction multiplies each token's loss with, masks included."""
    asked = getattr(config, "off_policy_correction", None)
    if asked is None or sampled is None:
        return None, {}
    correct = importlib.import_module("skyrl.backends.skyrl_train.utils.off_policy_correction_utils").apply_off_policy_correction
    weight, kept, told = correct(torch.ones_like(old), old, sampled, mask, asked)
    return torch.where(kept > 0, weight, 0.0), dict(told)


def _settings(name: str, config: Any) -> tuple[tuple[str, Any], ...]:
    """Return a component's hyperparameters as far as SkyRL's algorithm has a setting for them; a recipe has its own."""
    found = offer("policy_loss", name)
    if found.component is None:
        return ()
    out = []
    for ours in found.component.params.model_fields:
        place = getattr(config, "sapo", None) if ours.startswith("tau_") else config
        value = getattr(place, {"clip_ratio_low": "eps_clip_low", "clip_ratio_high": "eps_clip_high"}.get(ours, ours), None)
        if value is not None:
            out.append((ours, value))
    return tuple(out)


@cache
def hosted(name: str, said: tuple[tuple[str, Any], ...] = ()) -> Hosted:
    """Return what a loss runs; what SkyRL cannot feed or divide raises ``IntegrationError``."""
    plan = offer("policy_loss", name).plan(dict(said), SUM)
    policy = next((t for t in plan.terms if t.name == "policy"), None)
    if policy is None:
        raise IntegrationError(f"{name}: this recipe has no policy_loss.")
    if others := [t.name for t in plan.terms if t is not policy]:
        say = f"{name}: SkyRL adds KL, entropy and the critic's loss itself; of the recipe only the policy loss is taken, not {', '.join(others)}."
        warnings.warn(say, RecipeWarning, stacklevel=2)
    made = Hosted(_summed(plan, policy), "SkyRL", GIVEN, who=name, hints=HINTS)
    if not _proportional(made):
        raise IntegrationError(f"{name}: this loss is not proportional to the advantages, and SkyRL's reduction reaches only what is.")
    return made


def _summed(plan: Plan, policy: Any) -> Plan:
    """Return the plan of the policy's term alone, added up; how a recipe averages is SkyRL's ``loss_reduction`` to say."""
    total = offer("policy_loss", "lossary/reinforce").plan({}, SUM)
    key = total.terms[0].aggregation
    named = plan.aggregations[policy.aggregation].component.name
    if named != "token-sum":
        warnings.warn(f"{plan.name}: SkyRL's loss_reduction averages, not the recipe's {named}.", RecipeWarning, stacklevel=3)
    return replace(plan, terms=(replace(policy, aggregation=key),), aggregations=total.aggregations, corrections=())


def _proportional(made: Hosted) -> bool:
    """Return whether halving the advantages halves the loss, tried on a small batch."""
    g = torch.Generator().manual_seed(0)
    old, new, sampled, a = (torch.randn(4, 6, generator=g, dtype=torch.float64) for _ in range(4))
    columns: dict[str, Any] = {"log_prob": new.sub(3).clamp(max=-0.1), "old_log_prob": old.sub(3).clamp(max=-0.1)}
    columns["rollout_log_prob"] = sampled.sub(3).clamp(max=-0.1)
    mask = torch.ones(4, 6)
    whole, half = (float(made.loss(mask, **columns, advantages=a * s)[0].actor) for s in (1.0, 0.5))
    return abs(whole / 2 - half) <= 1e-9 * max(abs(whole), 1e-9)


class Advantage:
    """One advantage estimator in SkyRL's signature."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(
        self,
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: Any = None,
        values: Tensor | None = None,
        grpo_norm_by_std: bool = True,
        gamma: float = 1.0,
        lambd: float = 1.0,
        config: Any = None,
        **_: Any,  # SkyRL hands on whatever its caller has
    ) -> tuple[Tensor, Tensor]:
        """Return padded advantages and returns, 0 wherever no sampled token was."""
        objective = estimating(self.name, gamma, lambd)
        return estimated(objective, response_mask, token_level_rewards, index, old_values=values)


def estimating(name: str, gamma: float, lambd: float) -> Objective:
    """Return the objective that makes an estimator's advantages; a component takes SkyRL's gamma and lambd, a recipe has its own."""
    found = offer("advantage", name)
    known = {} if found.component is None else found.component.params.model_fields
    plan = found.plan({k: v for k, v in (("gamma", gamma), ("lam", lambd)) if k in known})
    if not plan.advantages or plan.filters or plan.reward_kl:
        raise IntegrationError(
            f"{name}: of a recipe SkyRL can use only 'advantage'; groups it filters itself, and a KL it takes from rewards."
        )
    objective = Objective(replace(plan, terms=(), corrections=()))
    require_given(name, "SkyRL", objective.needs("estimate"), GIVEN_TO_ESTIMATORS, HINTS)
    return objective


def register() -> list[str]:
    """Enter everything into SkyRL's registries; a name that is taken raises SkyRL's own ``ValueError``. Returns the losses."""
    require_version("skyrl")
    theirs = importlib.import_module("skyrl.backends.skyrl_train.utils.ppo_utils")
    for name in offers("policy_loss"):
        theirs.PolicyLossRegistry.register(name, PolicyLoss(name))
    for name in offers("advantage"):
        theirs.AdvantageEstimatorRegistry.register(name, Advantage(name))
    return list(offers("policy_loss"))
