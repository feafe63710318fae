"""M2PO: bound the second moment of how stale the samples are, by leaving out as few tokens as that takes."""

import torch

from ...numerics import accumulator, bounded_log_ratio, clipped_surrogate, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive


@policy_loss(
    paper="arXiv:2510.01161",
    scope="step",
    compat={
        "areal": "m2_threshold, over each micro-batch.",
    },
)
def m2po(
    log_prob: PerToken,
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    advantages: PerToken,
    *,
    m2_threshold: Positive = 0.04,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``ppo-clip`` for the tokens that are left when the stalest are dropped one by one, as far as needed.

    .. math:: L_t = L^{clip}_t\, [t \in K], \qquad K = \text{the most tokens of smallest } x_t^2 \text{ with mean } < \theta, \qquad
        x_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, in units of the advantage; dropped tokens stay in the denominator, and one token is always kept. A token that the sampler
    did not score counts as fresh. The moment is over this rank's tokens of the step.
    """
    stale = (old_log_prob - scored(rollout_log_prob, old_log_prob)).to(accumulator(log_prob)).square()
    order = stale.argsort(stable=True)
    ordered = stale.index_select(0, order)
    place = torch.arange(1, stale.shape[0] + 1, device=stale.device)
    fits = (ordered.cumsum(0) / place < m2_threshold) | (place == 1)
    keep = torch.zeros_like(fits).index_copy(0, order, fits)
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    kept = torch.where(keep, advantages, 0.0)
    loss, report = clipped_surrogate(torch.where(keep, log_ratio, 0.0), kept, clip_ratio_low, clip_ratio_high)
    return loss, {**report, "ppo_kl": Mean(-log_ratio.detach()), "m2": Mean(stale), "m2_dropfrac": Mean(~keep)}
