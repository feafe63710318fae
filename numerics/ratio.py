"""The importance ratio and the clipped surrogate on it: the kernel of the PPO family."""

import math

import torch
from torch import Tensor

from ..registry import Mean, Report


def bounded(log_ratio: Tensor, bound: float | None) -> Tensor:
    """Return a log-ratio [nats] clamped to ``+- bound``, so that its exponential is finite in float32.

    Where the clamp binds the gradient is 0. ``None`` clamps only where the exponential would overflow (87 nats in float32): past
    that a clipped token would have a healthy loss and the gradient ``0 * inf``.
    """
    limit = math.log(torch.finfo(log_ratio.dtype).max) - 1 if bound is None else bound
    return log_ratio.clamp(-limit, limit)


def bounded_log_ratio(log_prob: Tensor, old_log_prob: Tensor, bound: float | None) -> Tensor:
    """Return ``log_prob - old_log_prob`` [nats], ``bounded``."""
    return bounded(log_prob - old_log_prob, bound)


def capped(ratio: Tensor, cap: float | None) -> Tensor:
    """Return a ratio, at most ``cap``; past it the gradient is 0. ``None`` caps nothing."""
    return ratio if cap is None else ratio.clamp(max=cap)


def scored(rollout_log_prob: Tensor, otherwise: Tensor) -> Tensor:
    """Return the sampler's log-probabilities [nats]; a token that it did not score (NaN) gets ``otherwise``, detached: the ratio 1."""
    return torch.where(rollout_log_prob.isnan(), otherwise.detach(), rollout_log_prob)


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, clip_ratio_low: float, clip_ratio_high: float, clip_ratio_c: float | None = None
) -> tuple[Tensor, Report]:
    r"""Return the pessimistic surrogate ``max(-r A, -clip(r, 1 - low, 1 + high) A)`` and verl's three metrics.

    With :math:`r = e^{\text{log_ratio}}` the two branches of the maximum differ only past the bound that the sign of :math:`A` makes
    matter, so the whole is :math:`-A \cdot \min(r, 1 + high)` for :math:`A \ge 0` and :math:`-A \cdot \max(r, 1 - low)` otherwise:
    one selection instead of two surrogates, and no tie at which a gradient could be halved. ``clip_ratio_c`` (dual clip) caps the
    ratio of a negative advantage, hence its loss at ``c |A|``. Exactly at a bound the gradient still flows.
    """
    ratio = log_ratio.exp()
    gains = advantages >= 0
    high, low = 1 + clip_ratio_high, 1 - clip_ratio_low
    usable = torch.where(gains, ratio.clamp(max=high), ratio.clamp(min=low, max=clip_ratio_c))
    plain = ratio.detach()
    clipped = torch.where(gains, plain > high, plain < low) & (advantages != 0)
    report: dict[str, Mean] = {"pg_clipfrac": Mean(clipped), "ppo_kl": Mean(-log_ratio.detach())}
    if clip_ratio_c is not None:
        report["pg_clipfrac_lower"] = Mean(~gains & (plain > clip_ratio_c))
    return -advantages * usable, report
