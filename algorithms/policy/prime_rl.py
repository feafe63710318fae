"""PRIME-RL's default: drop by probability against the sampler, and hold the rest by a square."""

from typing import Annotated

import torch

from ...numerics import bounded, probability_shift, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, NonNegative

DppoMaskLow = Annotated[Fraction, "how far a probability may fall where the advantage is not positive before the token is left out"]

DppoMaskHigh = Annotated[Fraction, "how far a probability may rise where the advantage is positive before the token is left out"]


@policy_loss(
    claims=("on-policy-gradient",),
    deviates={"on-policy-gradient@other-numbers": "What adv_tau says multiplies the gradient."},
    aliases=("prime-rl-default",),
    paper="arXiv:2602.04879",
    scope="token",
    suits={"aggregation": "token-mean"},
    compat={
        "prime-rl": "its default loss: the names are its own; log_ratio_bound: null; token-mean over the global count.",
    },
)
def prime_rl(
    log_prob: PerToken,
    rollout_log_prob: PerToken,
    advantages: PerToken,
    *,
    dppo_mask_low: DppoMaskLow = 0.2,
    dppo_mask_high: DppoMaskHigh = 0.2,
    adv_tau: Annotated[NonNegative, "what the advantage is multiplied by"] = 1.0,
    kl_tau: Annotated[NonNegative, "weight of the squared log-ratio to the sampler"] = 1e-3,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Mask as ``dppo-tv`` does, against the sampler, and add the square of the log-ratio on every token, the masked ones too.

    .. math:: L_t = -\tau_A A_t R_t\, [\text{kept}] + \tau_{KL}\, x_t^2, \qquad x_t = \ell_t - \ell^{roll}_t,\ R_t = e^{x_t}

    ``[N]``, in units of the advantage. A token is dropped when its probability has risen by more than ``dppo_mask_high`` (:math:`A_t >
    0`) or fallen by more than ``dppo_mask_low`` (else). The square is Kimi-K2.5's (arXiv:2602.02276). A token that the sampler did not
    score has the ratio 1.
    """
    behaviour = scored(rollout_log_prob, log_prob)
    shift = probability_shift(log_prob, behaviour)
    keep = ~torch.where(advantages > 0, shift > dppo_mask_high, shift < -dppo_mask_low)
    return held_surrogate(log_prob, behaviour, advantages, keep, adv_tau, kl_tau, log_ratio_bound)


def held_surrogate(
    log_prob: torch.Tensor,
    behaviour: torch.Tensor,
    advantages: torch.Tensor,
    keep: torch.Tensor,
    adv_tau: float,
    kl_tau: float,
    bound: float | None,
) -> tuple[torch.Tensor, Report]:
    """Return the unclipped surrogate of the kept tokens and the square of every token's log-ratio."""
    moved = log_prob - behaviour
    ratio = torch.where(keep, bounded(moved, bound), 0.0).exp()
    loss = -adv_tau * torch.where(keep, advantages, 0.0) * ratio + kl_tau * moved.square()
    return loss, {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-moved.detach())}
