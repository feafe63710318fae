"""REC: REINFORCE on old samples, with clipping and importance weights as two separate choices."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import bounded, bounded_log_ratio, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, NonNegative, Positive

ClipMode = Annotated[
    Literal["none", "two-side", "one-side", "gspo-one-side", "ring"],
    "which range of the ratio still counts; ring also lets in what lies far out on the side that pulls back",
]

Weight = Annotated[
    Literal["none", "importance_sampling", "gspo_importance_sampling", "advantage"],
    "what weighs a token: 1, its ratio, the sequence's mean ratio, or exp(advantage / temp)",
]

Regularizer = Annotated[
    Literal["none", "k2", "forward-kl"], "what is added at every token: nothing, the squared log-ratio, or minus the log-probability"
]

EpsilonLowPrime = Annotated[ClipBelow, "ring: a token with a positive advantage also counts where its ratio is at most 1 - this"]

EpsilonHighPrime = Annotated[ClipRange, "ring: a token with a negative advantage also counts where its ratio is at least 1 + this"]


@policy_loss(
    paper="arXiv:2509.24203",
    scope="sequence",
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "trinity-rft": "`rec`: its own names; its defaults are epsilon_low_prime: 0.6 and epsilon_high_prime: 2; log_ratio_bound: null.",
    },
)
def rec(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_mode: ClipMode = "one-side",
    weight: Weight = "none",
    regularizer: Regularizer = "none",
    regularizer_coef: Annotated[NonNegative, "weight of the regularizer"] = 0.0,
    temp: Annotated[Positive, "what the advantage is divided by before exp, with weight: advantage"] = 1.0,
    epsilon_low: ClipBelow = 0.2,
    epsilon_high: ClipRange = 0.2,
    epsilon_low_prime: EpsilonLowPrime = 0.4,
    epsilon_high_prime: EpsilonHighPrime = 0.4,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Take ``reinforce`` as it is and drop tokens outside a range; the importance weight, which ``ppo-clip`` always has, is optional.

    .. math:: L_t = -\operatorname{sg}(w_t)\, A_t\, \ell_t\, [\text{in range}] + c\, \{d_t^2 \mid -\ell_t\}

    ``[N]``, in advantage times nats. The range of the ratio is ``two-side``, ``one-side`` (as PPO's gradient), one-side on ``gspo``'s
    ratio, or a ``ring``: two-side, and also far enough out on the side that pulls back (the primed bounds). The weight is 1, the
    ratio, ``gspo``'s ratio, or :math:`e^{A_t / temp}`. ``k2`` with weight ``none`` is Kimi's loss, ``forward-kl`` AsymRE's.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    whole = bounded(sequences.spread(sequences.mean((log_prob - old_log_prob).detach())), log_ratio_bound)
    ratio, sequence_ratio = log_ratio.detach().exp(), whole.exp()
    gains, losses = advantages >= 0, advantages <= 0
    inside = (ratio >= 1 - epsilon_low) & (ratio <= 1 + epsilon_high)
    back = (gains & (ratio <= 1 - epsilon_low_prime)) | (losses & (ratio >= 1 + epsilon_high_prime))

    def one_side(r: Tensor) -> Tensor:
        return (gains & (r <= 1 + epsilon_high)) | (losses & (r >= 1 - epsilon_low))

    keep = {
        "none": torch.ones_like(gains),
        "two-side": inside,
        "one-side": one_side(ratio),
        "gspo-one-side": one_side(sequence_ratio),
        "ring": inside | back,
    }[clip_mode]
    factor = {
        "none": torch.ones_like(ratio),
        "importance_sampling": ratio,
        "gspo_importance_sampling": sequence_ratio,
        "advantage": bounded(advantages / temp, log_ratio_bound).exp(),
    }[weight]
    loss = score_loss(factor, advantages, log_prob, keep)
    if regularizer == "k2":
        loss = loss + regularizer_coef * (log_prob - old_log_prob).square()
    elif regularizer == "forward-kl":
        loss = loss - regularizer_coef * log_prob
    return loss, {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-log_ratio.detach())}
