"""PRIME-RL's IPO: one bound on how far a token's probability may lie from the sampler's, for either sign of the advantage."""

from typing import Annotated

from ...numerics import probability_shift, scored
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, NonNegative
from .prime_rl import held_surrogate


@policy_loss(
    claims=("on-policy-gradient",),
    deviates={"on-policy-gradient@other-numbers": "What adv_tau says multiplies the gradient."},
    scope="token",
    suits={"aggregation": "token-mean"},
    compat={
        "prime-rl": "`ipo`: the names are its own; log_ratio_bound: null.",
    },
)
def prime_ipo(
    log_prob: PerToken,
    rollout_log_prob: PerToken,
    advantages: PerToken,
    *,
    ipo_threshold: Annotated[Fraction, "how far a probability may lie from the sampler's before the token is left out"] = 0.1,
    adv_tau: Annotated[NonNegative, "what the advantage is multiplied by"] = 1.0,
    kl_tau: Annotated[NonNegative, "weight of the squared log-ratio to the sampler"] = 1e-3,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``prime-rl`` with a mask that does not ask which way the advantage points.

    .. math:: L_t = -\tau_A A_t R_t\, [\,|\pi_t - \pi^{roll}_t| \le \theta\,] + \tau_{KL}\, x_t^2

    ``[N]``, in units of the advantage. A token that the sampler did not score has the ratio 1.
    """
    behaviour = scored(rollout_log_prob, log_prob)
    keep = probability_shift(log_prob, behaviour).abs() <= ipo_threshold
    return held_surrogate(log_prob, behaviour, advantages, keep, adv_tau, kl_tau, log_ratio_bound)
