"""BAPO: move the clip bounds until good tokens carry their share of the step."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...numerics import accumulator, bounded_log_ratio
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, Positive
from .dual_clip import RatioCap

AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]
"""An upper bound below 1 would leave a good token nothing to learn on policy."""


@policy_loss(
    paper="arXiv:2510.18927",
    scope="step",
    suits={"ratio_lower_max": ">= ratio_lower_start", "ratio_upper_max": ">= ratio_upper_start", "clip_ratio_c": "> ratio_upper_max"},
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"hyperparameters-used": "A step of the search counts only where it ends between its two ends."},
    compat={
        "BAPO": "`bapo`: the names are its own; its sums reach over data-parallel ranks.",
    },
)
def bapo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    adv_ratio_target: Annotated[Positive, "how much the good tokens must weigh, as a multiple of the bad ones"] = 0.5,
    ratio_lower_start: Annotated[Fraction, "the lower bound of the ratio that is tried first"] = 0.8,
    ratio_lower_max: Annotated[Fraction, "the last lower bound that is tried"] = 0.95,
    ratio_lower_step: Annotated[Positive, "by how much the lower bound rises from try to try"] = 0.05,
    ratio_upper_start: Annotated[AtLeastOne, "the upper bound of the ratio that is tried first"] = 1.2,
    ratio_upper_max: Annotated[AtLeastOne, "the last upper bound that is tried"] = 2.0,
    ratio_upper_step: Annotated[Positive, "by how much the upper bound rises from try to try"] = 0.1,
    clip_ratio_c: RatioCap = 3.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``dual-clip`` with bounds that are searched anew for every step, the lower one first, then the upper one.

    .. math:: \rho(a, b) = \frac{\sum_{A_t \ge 0} \min(r_t, b)\, A_t}{\sum_{A_t < 0} \max(r_t, a)\, |A_t|}, \qquad
        (a, b) = \text{the first with } \rho \ge \text{target, else the last}

    ``[N]``, in units of the advantage. The bounds are ratios. All candidates are weighed at once, so the host never waits. The sums are
    over this rank's tokens of the step.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio, gains = log_ratio.exp(), advantages >= 0
    plain = ratio.detach()
    below = _steps(ratio_lower_start, ratio_lower_max, ratio_lower_step)
    lows = _grid(ratio_lower_start, ratio_lower_max, ratio_lower_step, below, plain)
    highs = _grid(ratio_upper_start, ratio_upper_max, ratio_upper_step, _steps(ratio_upper_start, ratio_upper_max, ratio_upper_step), plain)
    wide, size = plain.to(lows.dtype), advantages.to(lows.dtype)
    good = (torch.minimum(wide, highs[:, None]) * torch.where(gains, size, 0.0)).sum(1)
    bad = (torch.maximum(wide, lows[:, None]) * torch.where(gains, 0.0, -size)).sum(1)
    # First the lower bound climbs to its end, then the upper one: a path, and how far along it the target is still missed.
    share = torch.cat([good[:1] / (bad + 1e-8), good[1:] / (bad[-1:] + 1e-8)])
    missed = (bad[:1] > 0) & (share < adv_ratio_target)
    place = missed.long().cumprod(0).sum().clamp(max=share.shape[0] - 1)
    low = lows.gather(0, place.clamp(max=below)[None])[0].to(ratio.dtype)
    high = highs.gather(0, (place - below).clamp(min=0)[None])[0].to(ratio.dtype)
    usable = torch.where(gains, ratio.clamp(max=high), ratio.clamp(min=low).clamp(max=clip_ratio_c))
    report = {
        "pg_clipfrac": Mean(torch.where(gains, plain > high, plain < low) & (advantages != 0)),
        "ppo_kl": Mean(-log_ratio.detach()),
        "pg_clipfrac_lower": Mean(~gains & (plain > clip_ratio_c)),
        "bapo/clip_low": Mean(low.expand_as(plain)),
        "bapo/clip_high": Mean(high.expand_as(plain)),
    }
    return -advantages * usable, report


def _steps(start: float, end: float, step: float) -> int:
    """Return how many steps lead from ``start`` to ``end``, a last shorter one included."""
    return max(math.ceil((end - start) / step - 1e-9), 0)


def _grid(start: float, end: float, step: float, steps: int, like: Tensor) -> Tensor:
    """Return the candidates of one bound, from ``start`` to ``end``, made on the device."""
    return (start + step * torch.arange(steps + 1, dtype=accumulator(like), device=like.device)).clamp(max=max(start, end))
