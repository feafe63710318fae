"""doubt-clip: the less a grade can be trusted, the sooner its tokens stop paying."""

from typing import Annotated

import torch
from lossary import Mean, PerToken, policy_loss
from lossary.numerics import bounded_log_ratio
from lossary.registry import Report
from lossary.registry.hyper import ClipBelow, ClipRange, LogRatioBound, NonNegative

from .columns import HIGHEST, LOWEST


@policy_loss(scope="token", claims=("on-policy-gradient",), deviates={"referenced": "an idea of this package"})
def doubt_clip(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    trust: PerToken | None = None,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    power: Annotated[NonNegative, "of the trust that the clip range is multiplied by; 0: ppo-clip"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip as ``ppo-clip`` does, but narrower where the grade is doubtful: a wrong grade cannot move a token far in one update.

    .. math:: L_t = \max\bigl(-r_t A_t,\; -\operatorname{clip}(r_t, 1 - \epsilon_{low} c_i^p, 1 + \epsilon_{high} c_i^p)\, A_t\bigr)

    ``[N]``, in units of the advantage; :math:`c_i` is ``trust`` of the token's sequence, cut to 0..1, and :math:`p` is ``power``. The
    first step on a batch is that of ``ppo-clip`` whatever the trust is, for every ratio is 1; it is later epochs and minibatches that a
    doubtful sequence takes no part in; ``trusted-baseline`` makes the first step smaller too. A batch without ``trust`` is trusted.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio = log_ratio.exp()
    width = torch.ones_like(ratio) if trust is None else trust.clamp(LOWEST, HIGHEST) ** power
    high, low = 1 + clip_ratio_high * width, 1 - clip_ratio_low * width
    gains = advantages >= 0
    # A selection, not clamp: exactly at a bound, which with a trust of 0 is every fresh token, the gradient still flows.
    clipped = torch.where(gains, ratio > high, ratio < low)
    usable = torch.where(clipped, torch.where(gains, high, low).to(ratio.dtype), ratio)
    report = {"pg_clipfrac": Mean(clipped & (advantages != 0)), "ppo_kl": Mean(-log_ratio.detach()), "clip_width": Mean(width)}
    return -advantages * usable, report
