"""80/20: only the fifth of the tokens at which the policy is undecided learn, since the others follow from them."""

from typing import Annotated

import torch

from ...numerics import bounded_log_ratio, clipped_surrogate, quantile
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, Fraction, LogRatioBound


@policy_loss(
    aliases=("80-20", "forking-tokens"),
    paper="arXiv:2506.01939",
    scope="step",
    compat={
        "trl": "top_entropy_quantile with epsilon and epsilon_high; log_ratio_bound: null; its threshold is rounded to float32.",
        "ms-swift": "top_entropy_quantile, over each micro-batch alone; log_ratio_bound: null.",
        "unsloth-zoo": "top_entropy_quantile; log_ratio_bound: null.",
    },
)
def high_entropy(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    entropy: PerToken,
    *,
    top_entropy_quantile: Annotated[Fraction, "share of the step's tokens, those of highest entropy, that learn"] = 0.2,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.28,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``ppo-clip`` for the tokens of highest entropy in the step, and 0 for the others.

    .. math:: L_t = L^{clip}_t\, [H_t \ge q_{1 - \rho}(H)]

    ``[N]``, in units of the advantage. The other tokens stay in the denominator. The entropy is read, never trained. The quantile is
    over this rank's tokens of the step.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    keep = entropy.detach() >= quantile(entropy, 1 - top_entropy_quantile)
    kept = torch.where(keep, advantages, 0.0)
    loss, report = clipped_surrogate(torch.where(keep, log_ratio, 0.0), kept, clip_ratio_low, clip_ratio_high)
    return loss, {**report, "ppo_kl": Mean(-log_ratio.detach()), "entropy_keepfrac": Mean(keep)}
