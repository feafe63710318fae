"""Decoupled PPO without a second forward pass: the policy at the start of the step is drawn on the line between sampler and learner."""

from typing import Annotated

import torch
from torch import Tensor

from ...numerics import bounded, bounded_log_ratio, clipped_surrogate, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive

BehavImpWeightCap = Annotated[Positive | None, "a token with a larger weight of old policy over sampler is dropped; null: none is"]


@policy_loss(
    claims=("on-policy-gradient", "pulls-back"),
    aliases=("areal-loglinear",),
    scope="token",
    suits={"behav_imp_weight_cap": ">= 1"},
    compat={"areal": "use_decoupled_loss with prox_logp_method loglinear and its former cap of 5; policy_version counts optimizer steps."},
)
def loglinear_ppo(
    log_prob: PerToken,
    rollout_log_prob: PerToken,
    policy_version: PerToken,
    advantages: PerToken,
    step: Tensor,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    behav_imp_weight_cap: BehavImpWeightCap = 5.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``decoupled-ppo`` with an interpolated old policy, so that no ``old_log_prob`` need be computed.

    .. math:: \ell^{old}_t = \ell^{roll}_t + \alpha_t\, \operatorname{sg}(\ell_t - \ell^{roll}_t), \qquad
        \alpha_t = \frac{v - 1 - v_t}{v - v_t}

    ``[N]``, in units of the advantage. :math:`v_t` is the version that sampled the token (``policy_version``, in optimizer steps) and
    :math:`v` the one that this step makes. A fresh token has :math:`\alpha = 0`: its old policy is its sampler, as in ``ppo-clip``; an
    ancient one stays near the policy itself. A weight above its cap drops the token. A token that the sampler did not score has both
    ratios 1.
    """
    behaviour = scored(rollout_log_prob, log_prob)
    age = (step - policy_version).clamp(min=0).to(log_prob.dtype)
    gone = (age / (age + 1)) * (log_prob.detach() - behaviour)
    weight = bounded(gone, log_ratio_bound).exp()
    outside = torch.zeros_like(weight, dtype=torch.bool) if behav_imp_weight_cap is None else weight > behav_imp_weight_cap
    log_ratio = bounded_log_ratio(log_prob, behaviour + gone, log_ratio_bound)
    loss, report = clipped_surrogate(log_ratio, torch.where(outside, 0.0, advantages), clip_ratio_low, clip_ratio_high)
    return torch.where(outside, 1.0, weight) * loss, {**report, "behave_imp_weight": Mean(weight), "behave_clipfrac": Mean(outside)}
