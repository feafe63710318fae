"""GMPO: the geometric mean of clipped ratios, so that no single token can carry a sequence away."""

from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import bounded
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound

LogRange = Annotated[float, Field(ge=0, le=80, description="how far a log-ratio may move from 0 [nats] before it stops paying")]


@policy_loss(
    aliases=("geo-mean",),
    paper="arXiv:2507.20673",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean"},
    compat={
        "verl": "`geo_mean`: both bounds as there, 0.2 by default; log_ratio_bound: null; all rows count.",
        "trl": "its GMPO trainer: epsilon is both bounds; log_ratio_bound: null; all rows count.",
    },
)
def gmpo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    correction: PerToken | None = None,
    *,
    clip_ratio_low: LogRange = 0.4,
    clip_ratio_high: LogRange = 0.4,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerSequence, Report]:
    r"""Clip token by token like ``ppo-clip``, but average the clipped log-ratios; ``gspo`` averages first and clips the mean.

    .. math:: z_t = \begin{cases} \min(d_t, \epsilon_{high}) & A_t > 0 \\ \max(d_t, -\epsilon_{low}) & A_t < 0 \end{cases}, \qquad
        L_i = -\bar A_i \exp\Bigl(\tfrac{1}{n_i} \sum_t z_t\Bigr), \qquad d_t = \ell_t - \ell^{old}_t

    ``[S]``, in units of the advantage; :math:`\bar A_i` is the sequence's mean. The bounds are in nats, not in ratios: 0.4 allows
    :math:`e^{-0.4}` to :math:`e^{0.4}`. A token whose advantage is 0 leaves the mean alone. The paper weighs sequences equally. Weights
    against a mismatch (``correction``) come in as their own geometric mean, as in verl.
    """
    log_ratio = log_prob - old_log_prob
    gains, losses = advantages > 0, advantages < 0
    clamped = torch.where(gains, log_ratio.clamp(max=clip_ratio_high), log_ratio.clamp(min=-clip_ratio_low))
    moved = torch.where(gains | losses, clamped, 0.0)
    ratio = bounded(sequences.mean(moved), log_ratio_bound).exp()
    if correction is not None:
        ratio = ratio * sequences.mean(correction.clamp(min=1e-10).log()).exp()
    plain = log_ratio.detach()
    report = {
        "pg_clipfrac": Mean((gains & (plain > clip_ratio_high)) | (losses & (plain < -clip_ratio_low))),
        "ppo_kl": Mean(-plain),
    }
    return -sequences.mean(advantages) * ratio, report
