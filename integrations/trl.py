"""TRL: a GRPO trainer whose loss and advantages come from a recipe.

``LossaryGRPOTrainer(recipe="dapo", ...)`` takes everything else that TRL's ``GRPOTrainer`` takes. The recipe says all of the loss: its
settings in ``GRPOConfig`` must be left at their defaults, but for ``beta``, which makes TRL keep a reference model and must be the recipe's
coefficient. Sums are divided here, once, by the counts that TRL divides by.
"""

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch
from ..builtin import compose
from ..pipeline import Objective, Plan
from ..registry import Level
from .gate import IntegrationError, require_given, require_untouched, require_version
from .hosted import Hosted

WHO = "LossaryGRPOTrainer"
OURS = (
    "loss_type", "epsilon", "epsilon_high", "delta", "importance_sampling_level", "scale_rewards", "multi_objective_aggregation",
    "top_entropy_quantile", "off_policy_mask_threshold", "use_bias_correction_kl", "sapo_temperature_neg", "sapo_temperature_pos",
    "vespo_k_pos", "vespo_lambda_pos", "vespo_k_neg", "vespo_lambda_neg", "entropy_coef", "use_adaptive_entropy",
)  # fmt: skip
"""What of ``GRPOConfig`` is the recipe's to say."""
GIVEN_TO_ESTIMATORS = ("rewards", "component_rewards", "group_ids", "ref_log_prob", "old_log_prob")
HINTS = {
    "ref_log_prob": "Set beta to the recipe's coefficient, so that TRL keeps a reference model.",
    "rollout_log_prob": "TRL has it where vLLM samples: use_vllm=True.",
    "group_ids": "TRL shuffles the sequences of a prompt into different micro-batches.",
}


class LossaryMixin:
    """Goes before a GRPO trainer in a class's bases; see ``LossaryGRPOTrainer``."""

    def __init__(
        self,
        *args: Any,
        recipe: Any,
        overrides: Iterable[str] | Mapping[str, Any] = (),
        components: Iterable[Callable[..., Any]] = (),
        **kwargs: Any,  # the host's own
    ) -> None:
        require_version("trl")
        super().__init__(*args, **kwargs)
        host: Any = self
        plan = compose(recipe, overrides, components=components).plan
        self.lossary = hosted(plan, host)
        self.lossary_estimates = estimating(plan, host)
        self._rewards_of_all: Tensor | None = None
        self._step_taken = False

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Tensor:  # whatever TRL hands on
        host: Any = super()
        self._rewards_of_all = host._calculate_rewards(*args, **kwargs)
        return self._rewards_of_all

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        host: Any = super()
        out: dict[str, Any] = host._generate_and_score_completions(inputs)
        if self.lossary_estimates is not None:
            assert self._rewards_of_all is not None
            out["advantages"] = advantages_of(self.lossary_estimates, self, out, self._rewards_of_all)
        return out

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        host: Any = self
        training = host.model.training
        if training and self._step_taken:
            self.lossary.objective.commit()
        mask = inputs["completion_mask"] * inputs["tool_mask"] if "tool_mask" in inputs else inputs["completion_mask"]
        log_prob, entropy = outputs_of(host, model, inputs)
        old, advantages = inputs.get("old_per_token_logps"), inputs["advantages"]
        ranks = host.accelerator.num_processes
        window = host.current_gradient_accumulation_steps if training else 1
        tokens = inputs["num_items_in_batch"].clamp(min=1)  # those of all that was generated, dealt out evenly: TRL's own rule
        out, metrics = self.lossary.loss(
            mask,
            log_prob=log_prob,
            entropy=entropy,
            old_log_prob=log_prob.detach() if old is None else old,  # TRL keeps none where nothing was learnt since
            advantages=advantages,
            ref_log_prob=inputs.get("ref_per_token_logps"),
            rollout_log_prob=inputs.get("sampling_per_token_logps"),
            tokens=tokens * window / host.args.steps_per_generation if training else tokens,
            sequences=mask.shape[0] * window * ranks,
            times=ranks,  # gradients are averaged over ranks
        )
        for name, value in metrics.items():
            host._metrics["train" if training else "eval"][f"lossary/{name}"].append(value)
        if training:
            self._step_taken = bool(host.accelerator.sync_gradients)
        return out.actor


def hosted(plan: Plan, host: Any) -> Hosted:
    """Return the recipe's loss inside a trainer; what TRL cannot give, or would say beside it, raises ``IntegrationError``."""
    settings = host.args
    defaults = {f.name: f.default for f in fields(settings) if f.name in OURS}
    require_untouched(WHO, settings, defaults)
    if getattr(host, "aux_loss_enabled", False):
        raise IntegrationError(f"{WHO}: a router's auxiliary loss is not added here; set router_aux_loss_coef=0.")
    if settings.use_vllm and settings.vllm_importance_sampling_correction:
        raise IntegrationError(
            f"{WHO}: TRL would correct for vLLM beside the recipe; set vllm_importance_sampling_correction=False and say it under 'correction'."
        )
    coefficients = [t.coefficient for t in plan.terms if t.bound.component.kind.name == "kl"] + [k.coefficient for k in plan.reward_kl]
    said = next((c.fixed for c in coefficients if c.fixed is not None), None)
    if (settings.beta != 0) is not bool(coefficients) or (said is not None and settings.beta != said):
        raise IntegrationError(f"{WHO}: beta={settings.beta} and the recipe's KL differ; set beta={said or 0}.")
    if host.accelerator.num_processes > 1 and any(t.coefficient.bound is not None for t in plan.terms):
        raise IntegrationError(f"{WHO}: a coefficient that moves with what was measured is not reduced over TRL's processes.")
    require_no_critic(plan)
    given = ["log_prob", "entropy", "old_log_prob", "advantages"]
    given += ["ref_log_prob"] * (settings.beta != 0) + ["rollout_log_prob"] * bool(settings.use_vllm)
    return Hosted(plan, "TRL", given, who=WHO, hints=HINTS)


def require_no_critic(plan: Plan) -> None:
    """Raise ``IntegrationError`` for a recipe with a value loss."""
    if any(t.role == "critic" for t in plan.terms):
        raise IntegrationError(f"{WHO}: the recipe has a value_loss, and GRPO no critic.")


def estimating(plan: Plan, host: Any) -> Objective | None:
    """Return what makes advantages, or None where the recipe leaves them to TRL."""
    many = host.accelerator.num_processes > 1
    if many and (plan.rewards or plan.reward_kl or any(b.component.returns is not Level.SEQUENCE for b in plan.advantages)):
        raise IntegrationError(f"{WHO}: over several processes only advantages of one value per sequence, from rewards alone, are made.")
    objective = made_by_recipe(plan)
    if objective is not None:
        given = [c for c in GIVEN_TO_ESTIMATORS if not many or not c.endswith("log_prob")]
        require_given(WHO, "TRL", objective.needs("estimate"), given, HINTS)
    return objective


def made_by_recipe(plan: Plan) -> Objective | None:
    """Return what makes a recipe's advantages, or None if it has none."""
    if plan.filters:
        raise IntegrationError(f"{WHO}: TRL keeps every row, so the recipe's 'filter' has no place here.")
    return Objective(replace(plan, terms=(), corrections=())) if plan.advantages else None


def advantages_of(objective: Objective, host: Any, out: Mapping[str, Any], rewards: Tensor) -> Tensor:
    """Return the advantages of this process's sequences, ``[B]`` or ``[B, T]``, from the rewards of all."""
    ranks, here = host.accelerator.num_processes, out["completion_mask"].shape[0]
    size = host.num_generations if host.model.training else host.num_generations_eval
    columns: dict[str, Any] = {
        "rewards": (rewards * host.reward_weights.to(rewards.device).unsqueeze(0)).nansum(1),
        "component_rewards": rewards.nan_to_num(),
        "group_ids": torch.arange(rewards.shape[0], device=rewards.device) // size,
    }
    mask = out["completion_mask"] * out["tool_mask"] if "tool_mask" in out else out["completion_mask"]
    if ranks > 1:  # one value per sequence, whatever its length
        mask = torch.ones(rewards.shape[0], 1, device=rewards.device)
    else:
        named = {"ref_log_prob": "ref_per_token_logps", "old_log_prob": "old_per_token_logps"}
        columns |= {ours: out[theirs] for ours, theirs in named.items() if theirs in out}
    batch = objective.estimate(Batch.from_padded(mask, **columns))
    if batch.levels["advantages"] is Level.SEQUENCE:
        return batch["advantages"][host.accelerator.process_index * here :][:here].to(rewards.dtype)
    return batch.unpack(batch["advantages"]).to(rewards.dtype)


def outputs_of(host: Any, model: Any, inputs: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities and entropies of the completions, by TRL's own pass."""
    ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
    seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
    images = (
        "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids",
        "mm_token_type_ids", "image_position_ids",
    )  # fmt: skip
    brought = {name: inputs[name] for name in images if inputs.get(name) is not None}
    log_prob, entropy, _ = host._get_per_token_logps_and_entropies(
        model, ids, seen, inputs["completion_ids"].size(1), compute_entropy=True, **brought
    )
    return log_prob, entropy


def __getattr__(name: str) -> Any:
    """Make ``LossaryGRPOTrainer`` when it is first asked for, so that this module is read without TRL."""
    if name != "LossaryGRPOTrainer":
        raise AttributeError(name)
    require_version("trl")
    base = importlib.import_module("trl").GRPOTrainer
    made = type(WHO, (LossaryMixin, base), {"__doc__": "TRL's GRPO trainer with loss and advantages of a recipe.", "__module__": __name__})
    globals()[name] = made
    return made
