"""Decoupled PPO: one policy to stay near, another one that sampled."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import bounded, bounded_log_ratio, clipped_surrogate, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, NonNegative, Positive

Action = Annotated[Literal["mask", "clamp"], "what becomes of a weight outside its bounds: the token is dropped, or the weight clamped"]

ImportanceSamplingLevel = Annotated[
    Literal["token", "sequence"], "whose weight is taken: the token's own, or the geometric mean over its sequence"
]


@policy_loss(
    claims=("on-policy-gradient", "pulls-back"),
    aliases=("areal",),
    paper="arXiv:2505.24298",
    scope="sequence",
    suits={"behav_imp_weight_cap": ">= 1", "behav_imp_weight_floor": "<= 1"},
    compat={
        "areal": "use_decoupled_loss, rejection_sampling by ratio: its level, lower, upper and action; log_ratio_bound: null.",
    },
)
def decoupled_ppo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    behav_imp_weight_cap: Annotated[Positive | None, "the largest weight of old policy over sampler; null: no limit"] = 5.0,
    behav_imp_weight_floor: Annotated[NonNegative, "the smallest weight of old policy over sampler"] = 0.0,
    action: Action = "mask",
    importance_sampling_level: ImportanceSamplingLevel = "token",
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip against the policy at the start of the step, and weigh by how it differs from the sampler; ``ppo-clip`` takes them for one.

    .. math:: L_t = \operatorname{sg}(w_t) \max\bigl(-r_t A_t,\; -\operatorname{clip}(r_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr),
        \qquad r_t = e^{\ell_t - \ell^{old}_t},\ w_t = e^{\ell^{old}_t - \ell^{roll}_t}

    ``[N]``, in units of the advantage. A weight outside its bounds drops the token, or is clamped. At level ``sequence`` the weight is
    the geometric mean of the sequence's, not their product: less noise, and a bias. A token that the sampler did not score has the
    weight 1.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    stale = old_log_prob - scored(rollout_log_prob, old_log_prob)
    if importance_sampling_level == "sequence":
        stale = sequences.spread(sequences.mean(stale))
    weight = bounded(stale, log_ratio_bound).exp()
    cap = float("inf") if behav_imp_weight_cap is None else behav_imp_weight_cap
    outside = (weight < behav_imp_weight_floor) | (weight > cap)
    usable = weight.clamp(behav_imp_weight_floor, cap)
    kept = advantages if action == "clamp" else torch.where(outside, 0.0, advantages)
    loss, report = clipped_surrogate(log_ratio, kept, clip_ratio_low, clip_ratio_high)
    return usable * loss, {**report, "behave_imp_weight": Mean(weight), "behave_clipfrac": Mean(outside)}
