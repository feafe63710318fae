"""Off-policy sequence masking: a bad answer that the policy has already moved away from teaches nothing more."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, NonNegative

OpsmDelta = Annotated[NonNegative, "mean fall of a sequence's log-probability above which its bad tokens are dropped [nats per token]"]


@policy_loss(
    claims=("on-policy-gradient",),
    aliases=("off-policy-sequence-mask",),
    paper="arXiv:2512.02556",
    scope="sequence",
    compat={
        "trl": "off_policy_mask_threshold is opsm_delta, epsilon is both bounds; log_ratio_bound: null.",
        "slime": "--use-opsm with opsm_delta, against the old policy: bring no rollout_log_prob.",
    },
)
def opsm(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    rollout_log_prob: PerToken | None = None,
    *,
    opsm_delta: OpsmDelta = 1e-4,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``ppo-clip``, but drop negative tokens of sequences that became less likely by more than a threshold.

    .. math:: L_t = L^{clip}_t \ \text{unless}\ A_t < 0 \ \text{and}\ \tfrac{1}{n_i} \sum_s (\ell^{b}_s - \ell_s) > \delta

    ``[N]``, in units of the advantage; dropped tokens stay in the denominator. :math:`\ell^b` is the sampler's log-probability where
    the batch brings ``rollout_log_prob`` and the sampler scored the token, else the old policy's. DeepSeek-V3.2's.
    """
    behaviour = old_log_prob if rollout_log_prob is None else torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob)
    gone = sequences.spread(sequences.mean(behaviour - log_prob.detach()) > opsm_delta)
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    drop = (advantages < 0) & gone
    kept = torch.where(drop, 0.0, advantages)
    loss, report = clipped_surrogate(torch.where(drop, 0.0, log_ratio), kept, clip_ratio_low, clip_ratio_high)
    return loss, {**report, "ppo_kl": Mean(-log_ratio.detach()), "opsm_clipfrac": Mean(drop)}
