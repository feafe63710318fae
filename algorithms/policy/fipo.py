"""FIPO: a token is paid by how much what follows it has become likelier."""

import math
from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive

HalfLife = Annotated[float, Field(gt=0, description="tokens after which a later token counts half")]

Delta = Annotated[Positive | None, "the largest ratio for a negative advantage; past it a token leaves the weights; null: no limit"]


@policy_loss(
    paper="arXiv:2603.19835",
    scope="sequence",
    suits={"aggregation": "token-mean", "delta": "> 1 + clip_ratio_high"},
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"pulls-back@delta=1.5": "Past delta a bad token is left alone, as by two-sided-delta."},
    compat={
        "ms-swift": "its FIPO loss: epsilon and epsilon_high are the clip range, the rest has the same names; log_ratio_bound: null.",
    },
)
def fipo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.28,
    delta: Delta = None,
    fipo_decay_rate: HalfLife = 32.0,
    fipo_clip_range: Annotated[ClipBelow, "how far the weight may rise above 1, and fall below it where both sides count"] = 0.2,
    fipo_clip_high_only: Annotated[bool, "whether the weight may only rise above 1; false: it may fall below as well"] = True,
    fipo_safety_threshold: Annotated[Positive, "a token with a negative advantage and a ratio above this never weighs more than 1"] = 4.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Multiply the loss of ``ppo-clip`` by the decayed, clipped ratio of a token and all that follow it in its sequence.

    .. math:: L_t = \operatorname{sg}\bigl(\operatorname{clip}(e^{F_t}, 1, 1 + \epsilon_F)\bigr)\, L^{clip}_t, \qquad
        F_t = \sum_{j \ge t} 2^{-(j - t) / h}\, d_j

    ``[N]``, in units of the advantage. ``fipo_clip_high_only: false`` lets the weight also fall to :math:`1 - \epsilon_F`. A negative
    token whose ratio exceeds the safety threshold is never weighed above 1. With ``delta`` (see ``two-sided-delta``) tokens past it
    leave :math:`F`. Distances count sampled tokens.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    moved, ratio = (log_prob - old_log_prob).detach(), log_ratio.detach().exp()
    counted = moved if delta is None else torch.where(ratio > delta, 0.0, moved)
    future = sequences.reverse_scan(counted, 2 ** (-1 / fipo_decay_rate))
    floor = math.log(max(1 - fipo_clip_range, 1e-8))
    weight = future.clamp(0.0 if fipo_clip_high_only else floor, math.log1p(fipo_clip_range)).exp()
    weight = torch.where((advantages < 0) & (ratio > fipo_safety_threshold), weight.clamp(max=1.0), weight)
    high = clip_ratio_high if delta is None else min(clip_ratio_high, delta - 1)
    cap = None if delta is None else max(delta, 1 + clip_ratio_high)
    loss, report = clipped_surrogate(log_ratio, advantages, clip_ratio_low, high, cap)
    return weight * loss, {**report, "fipo/influence_weight": Mean(weight)}
