"""The hook points of other frameworks as far as our adapters use them, written from their documentation: signatures, registries, config."""

import sys
import types
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

VERSIONS = {"verl": "0.9.1", "trl": "1.16.0", "skyrl": "0.3.0"}


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Say that frameworks are installed in their tried versions, or in others."""
    from importlib.metadata import PackageNotFoundError

    from lossary.integrations import gate

    def version(name: str) -> str:
        if name not in (VERSIONS | versions) or not (VERSIONS | versions)[name]:
            raise PackageNotFoundError(name)
        return (VERSIONS | versions)[name]

    monkeypatch.setattr(gate, "version", version)


def module(monkeypatch: pytest.MonkeyPatch, path: str, **members: Any) -> Any:
    made = types.ModuleType(path)
    made.__dict__.update(members)
    monkeypatch.setitem(sys.modules, path, made)
    return made


# ── verl ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class PolicyLossConfig:
    loss_mode: str = "vanilla"
    clip_cov_ratio: float = 0.0002
    dro_beta: float | None = None


@dataclass
class ActorConfig:
    clip_ratio: float = 0.2
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    loss_agg_mode: str = "token-mean"
    loss_scale_factor: int | None = None
    entropy_coeff: float = 0
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.001
    kl_loss_type: str = "low_var_kl"
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    global_batch_info: dict[str, Any] = field(default_factory=dict)


def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return verl's module of registries: the one for losses overwrites, the one for estimators does not."""
    losses: dict[str, Any] = {"vanilla": None}
    estimators: dict[str, Any] = {"grpo": None}

    def enter(book: dict[str, Any]) -> Any:
        return lambda name: lambda f: book.__setitem__(name, f) or f

    for path in ("verl", "verl.trainer", "verl.trainer.ppo"):
        module(monkeypatch, path)
    return module(
        monkeypatch, "verl.trainer.ppo.core_algos", POLICY_LOSS_REGISTRY=losses, ADV_ESTIMATOR_REGISTRY=estimators,
        register_policy_loss=enter(losses), register_adv_est=enter(estimators),
    )  # fmt: skip


def verl_calls(book: Any, config: ActorConfig, x: dict[str, Tensor], *, ranks: int = 1) -> tuple[Tensor, dict[str, float]]:
    """Call a loss mode as verl's ``ppo_loss`` does: all by keyword, counts in the config."""
    tokens = int(x["mask"].sum()) * ranks
    config.global_batch_info.update(dp_size=ranks, batch_num_tokens=tokens, global_batch_size=len(x["mask"]) * ranks)
    config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor
    return book.POLICY_LOSS_REGISTRY[config.policy_loss.loss_mode](
        old_log_prob=x["old"], log_prob=x["new"], advantages=x["advantages"], response_mask=x["mask"], loss_agg_mode=config.loss_agg_mode,
        config=config, rollout_is_weights=x.get("weights"),
    )  # fmt: skip


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class GRPOConfig:
    loss_type: str = "dapo"
    epsilon: float = 0.2
    beta: float = 0.0
    steps_per_generation: int = 2
    use_vllm: bool = False
    vllm_importance_sampling_correction: bool = True


class GRPOTrainer:
    """Half a trainer: what our mixin overrides and what it calls."""

    def __init__(self, x: dict[str, Tensor], args: GRPOConfig, ranks: int = 1) -> None:
        self.x, self.args = x, args
        self.accelerator = types.SimpleNamespace(num_processes=ranks, process_index=0, sync_gradients=True)
        self.model = types.SimpleNamespace(training=True)
        self.current_gradient_accumulation_steps = 2
        self.num_generations = 2
        self.reward_weights = torch.ones(1)
        self._metrics: dict[str, Any] = {"train": __import__("collections").defaultdict(list)}

    def _get_per_token_logps_and_entropies(self, model: Any, ids: Tensor, seen: Tensor, keep: int, compute_entropy: bool = False) -> Any:
        return self.x["new"], torch.ones_like(self.x["new"]), None

    def _calculate_rewards(self, inputs: Any) -> Tensor:
        return self.x["rewards"]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        self._calculate_rewards(inputs)
        return {"completion_mask": self.x["mask"].long(), "advantages": torch.zeros(len(self.x["mask"]))}

    def _compute_loss(self, model: Any, inputs: Any) -> Tensor:
        raise AssertionError("TRL's own loss is not asked")


def columns(seed: int = 0) -> dict[str, Tensor]:
    """Return four padded rows in float64; garbage stands under the mask."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1]]).bool()
    old = -torch.rand(4, 5, generator=g, dtype=torch.float64)
    new = old + 0.6 * torch.randn(4, 5, generator=g, dtype=torch.float64)
    old = torch.where(mask, old, float("nan"))
    a = torch.randn(4, 1, generator=g, dtype=torch.float64).expand(4, 5).contiguous()
    return {"mask": mask, "old": old, "new": new.requires_grad_(), "advantages": a, "rewards": torch.tensor([[1.0], [0.0], [1.0], [0.5]])}


def clipped(x: dict[str, Tensor], low: float = 0.2, high: float = 0.2, c: float | None = None) -> Tensor:
    """Return the slow obvious clipped loss of each sampled token."""
    m = x["mask"]
    r, a = (x["new"][m] - x["old"][m]).exp(), x["advantages"][m]
    loss = torch.maximum(-r * a, -r.clamp(1 - low, 1 + high) * a)
    return loss if c is None else torch.where(a < 0, torch.minimum(loss, -c * a), loss)
