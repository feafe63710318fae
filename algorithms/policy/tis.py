"""TIS policy gradient: importance weights between two bounds, and a gradient for every token."""

from typing import Annotated

from ...numerics import bounded_log_ratio, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, NonNegative, Positive


@policy_loss(
    aliases=("tis-pg",),
    scope="token",
    suits={"tis_upper_bound": ">= 1", "tis_lower_bound": "<= 1"},
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "roll": "`tis`: tis_lower_bound and tis_upper_bound, practically fixed at 0 and 1; log_ratio_bound: null.",
        "torchforge": "ReinforceLoss: tis_lower_bound: 0.1, tis_upper_bound: 10, log_ratio_bound: null; old_log_prob holds the sampler's.",
    },
)
def tis(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    tis_lower_bound: Annotated[NonNegative, "the smallest weight of a token"] = 0.0,
    tis_upper_bound: Annotated[Positive, "the largest weight of a token"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Truncate the ratio as a detached weight; ``topr`` does so only where the advantage is negative.

    .. math:: L_t = -\operatorname{sg}\bigl(\operatorname{clip}(r_t, a, b)\bigr)\, A_t\, \ell_t

    ``[N]``, in advantage times nats. The same form as ``cispo``, with the bounds of ROLL: at most 1, so a token can only lose weight.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio = log_ratio.detach().exp()
    weight = ratio.clamp(tis_lower_bound, tis_upper_bound)
    return score_loss(weight, advantages, log_prob), {"pg_clipfrac": Mean(ratio != weight), "ppo_kl": Mean(-log_ratio.detach())}
