"""Clip-Cov: a few tokens whose probability and advantage move together are left out, since they are what uses up the entropy."""

from typing import Annotated

import torch

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, Fraction, LogRatioBound, Real
from .covariance import covariance, smallest


@policy_loss(
    paper="arXiv:2505.22617",
    scope="step",
    suits={"clip_cov_ub": "> clip_cov_lb"},
    compat={
        "verl": "`clip_cov`: clip_cov_ratio, clip_cov_lb and clip_cov_ub; log_ratio_bound: null; it draws by a generator of its own.",
        "skyrl": "`clip_cov`: clip_ratio is clip_cov_ratio; log_ratio_bound: null; it divides the advantages first.",
    },
)
def clip_cov(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    noise: PerToken | None = None,
    *,
    clip_cov_ratio: Annotated[Fraction, "share of the step's tokens that are dropped at most"] = 2e-4,
    clip_cov_lb: Annotated[Real, "only tokens whose covariance is above this are dropped"] = 1.0,
    clip_cov_ub: Annotated[Real, "only tokens whose covariance is below this are dropped"] = 5.0,
    clip_ratio_low: ClipBelow = 1.0,
    clip_ratio_high: ClipRange = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Drop a share of the tokens whose covariance lies in a band, chosen by chance; ``kl-cov`` takes the largest and slows them instead.

    .. math:: c_t = (A_t - \bar A)(\ell_t - \bar\ell), \qquad L_t = \begin{cases} 0 & t \in S \\ L^{clip}_t & \text{else} \end{cases}

    ``[N]``, in units of the advantage. :math:`S` holds at most :math:`\max(1, \lfloor \rho N \rfloor)` of the tokens with
    :math:`lb < c_t < ub` that PPO does not clip already: those with the smallest ``noise``, a column that makes the choice the same
    however the step is run. Without it, those with the largest covariance. Means and :math:`N` are this rank's tokens of the step.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio, cov = log_ratio.detach().exp(), covariance(advantages, log_prob)
    clipped = torch.where(advantages >= 0, ratio > 1 + clip_ratio_high, ratio < 1 - clip_ratio_low)
    eligible = (cov > clip_cov_lb) & (cov < clip_cov_ub) & ~clipped
    key = torch.where(eligible, -cov if noise is None else noise, float("inf"))
    drop = eligible & smallest(key, max(int(clip_cov_ratio * log_prob.shape[0]), 1))
    kept = torch.where(drop, 0.0, advantages)
    loss, report = clipped_surrogate(torch.where(drop, 0.0, log_ratio), kept, clip_ratio_low, clip_ratio_high)
    return loss, {**report, "ppo_kl": Mean(-log_ratio.detach()), "clip_cov_frac": Mean(drop)}
