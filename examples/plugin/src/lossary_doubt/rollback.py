"""rollback: past the clip a token is not silent but called back."""

from typing import Annotated

import torch
from lossary import Mean, PerToken, policy_loss
from lossary.numerics import bounded_log_ratio
from lossary.registry import Report
from lossary.registry.hyper import ClipBelow, ClipRange, LogRatioBound, NonNegative


@policy_loss(
    scope="token",
    claims=("on-policy-gradient",),
    paper="Wang, He and Tan, 2019: Truly Proximal Policy Optimization",
)
def rollback(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    slope: Annotated[NonNegative, "of the surrogate past the bound, downward; 0: ppo-clip"] = 0.3,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Turn the surrogate around where ``ppo-clip`` levels it off: what other tokens of the step push too far is pulled back.

    .. math:: L_t = -A_t f(r_t), \qquad
        f(r) = \begin{cases} (1 + \alpha)\, b - \alpha r & r \text{ past the bound } b \text{ that the sign of } A_t \text{ makes matter}
        \\ r & \text{else} \end{cases}

    ``[N]``, in units of the advantage; :math:`b` is :math:`1 + \epsilon_{high}` or :math:`1 - \epsilon_{low}`, :math:`\alpha` is
    ``slope``. Clipping stops a token from pushing, not from being pushed by those that share its parameters; and what a wrong grade
    has done stays done. Exactly at the bound the gradient still points outward.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio = log_ratio.exp()
    gains = advantages >= 0
    high, low = 1 + clip_ratio_high, 1 - clip_ratio_low
    past = torch.where(gains, ratio > high, ratio < low)
    bound = torch.where(gains, high, low).to(ratio.dtype)
    turned = torch.where(past, (1 + slope) * bound - slope * ratio, ratio)
    return -advantages * turned, {"pg_clipfrac": Mean(past & (advantages != 0)), "ppo_kl": Mean(-log_ratio.detach())}
