"""CPGD: the policy gradient's own log-ratio, clipped, and a drift term that pulls back towards the old policy."""

import math
from typing import Annotated

import torch
from pydantic import Field

from ...numerics import bounded_log_ratio, straight_through
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipRange, LogRatioBound, NonNegative, Positive

Below1 = Annotated[float, Field(ge=0, lt=1, description="how far a ratio may fall below 1 before it stops paying")]


@policy_loss(paper="arXiv:2505.12504", scope="token", claims=("on-policy-gradient", "pulls-back"))
def cpgd(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: Below1 = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    drift_coef: Annotated[NonNegative, "weight of the pull towards the old policy"] = 0.01,
    drift_cap: Annotated[Positive, "the largest pull on a token, before it is weighted"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip the log-ratio where ``ppo-clip`` clips the ratio: the gradient carries no weight that could blow up.

    .. math:: L_t = \max\bigl(-A_t d_t,\; -A_t \operatorname{clip}(d_t, \log(1 - \epsilon_{low}), \log(1 + \epsilon_{high}))\bigr)
        + \alpha\, (r_t - 1 - d_t), \qquad d_t = \log r_t

    ``[N]``, in advantage times nats. The drift is an estimate of KL(old || policy); its gradient :math:`\min(r_t - 1, c)` is bounded,
    so that it never takes over. No framework of our golden numbers has it; the form follows the paper as the catalogue states it.
    """
    moved = log_prob - old_log_prob
    high, low = math.log1p(clip_ratio_high), math.log1p(-clip_ratio_low)
    usable = torch.where(advantages >= 0, moved.clamp(max=high), moved.clamp(min=low))
    excess = torch.expm1(bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound).detach())
    drift = straight_through(excess - moved.detach(), excess.clamp(max=drift_cap) * log_prob)
    plain = moved.detach()
    clipped = torch.where(advantages >= 0, plain > high, plain < low) & (advantages != 0)
    return -advantages * usable + drift_coef * drift, {"pg_clipfrac": Mean(clipped), "ppo_kl": Mean(-plain), "drift": Mean(drift.detach())}
