"""PRIME-RL's distillation: the teacher's log-ratio as advantage, in the surrogate against the sampler."""

from typing import Annotated

from ...numerics import probability_shift, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, NonNegative
from .prime_rl import held_surrogate


@policy_loss(
    scope="token",
    suits={"aggregation": "token-mean"},
    compat={
        "prime-rl": "`ref_kl`: mask_low and kl_tau are constants there; log_ratio_bound: null.",
    },
)
def prime_ref_kl(
    log_prob: PerToken,
    rollout_log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    mask_low: Annotated[Fraction, "how far a probability may fall below the sampler's before the token is left out"] = 0.2,
    kl_tau: Annotated[NonNegative, "weight of the squared log-ratio to the sampler"] = 1e-3,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the surrogate of ``prime-rl`` with the gap to the teacher as the advantage, and one mask for either sign of it.

    .. math:: L_t = -\operatorname{sg}(\ell^{tea}_t - \ell_t)\, R_t\, [\pi_t - \pi^{roll}_t \ge -\theta] + \tau_{KL}\, x_t^2

    ``[N]``, in nats. Unlike ``opd`` the ratio is against the sampler, unclipped; a token that the sampler did not score has the ratio 1.
    """
    behaviour = scored(rollout_log_prob, log_prob)
    gap = (teacher_log_prob - log_prob).detach()
    keep = probability_shift(log_prob, behaviour) >= -mask_low
    loss, report = held_surrogate(log_prob, behaviour, gap, keep, 1.0, kl_tau, log_ratio_bound)
    return loss, {**report, "teacher_kl": Mean(-gap)}
