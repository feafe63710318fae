"""Rollout importance sampling: the sampler's own probabilities are the denominator, and tokens it disagrees on are left out."""

from ...numerics import bounded_log_ratio, score_loss, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    claims=("on-policy-gradient",),
    aliases=("icepop",),
    paper="arXiv:2602.15763",
    scope="token",
    compat={
        "skyrl": "`rollout_is`: eps_clip_low and eps_clip_high; log_ratio_bound: 20.",
    },
)
def rollout_is(
    log_prob: PerToken,
    rollout_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipBelow = 0.5,
    clip_ratio_high: ClipRange = 4.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Weigh by the ratio to the sampler and drop what lies outside a band; ``cispo`` keeps such tokens at the bound.

    .. math:: L_t = -\operatorname{sg}(R_t)\, A_t\, \ell_t\, [1 - \epsilon_{low} < R_t < 1 + \epsilon_{high}], \qquad
        R_t = e^{\ell_t - \ell^{roll}_t}

    ``[N]``, in advantage times nats. One ratio covers staleness and the mismatch between sampler and trainer (GLM-5), so no second
    forward pass for ``old_log_prob`` is needed. A token that the sampler did not score has the ratio 1. IcePop's two-sided mask
    (arXiv:2510.18855) with the current policy in the place of the old one.
    """
    log_ratio = bounded_log_ratio(log_prob.detach(), scored(rollout_log_prob, log_prob), log_ratio_bound)
    ratio = log_ratio.exp()
    keep = (ratio > 1 - clip_ratio_low) & (ratio < 1 + clip_ratio_high)
    return score_loss(ratio, advantages, log_prob, keep), {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-log_ratio)}
