"""Two-sided clipping: PPO-clip with a second, looser ceiling on the ratio that PPO leaves open."""

from typing import Annotated

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive


@policy_loss(
    aliases=("intellect-2",),
    paper="arXiv:2505.07291",
    scope="token",
    suits={"delta": "> 1 + clip_ratio_high"},
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"pulls-back@delta=1.5": "Past delta a bad token is left alone, which is the idea of it: a low one leaves it early."},
    compat={
        "trl": "delta with epsilon and epsilon_high as clip_ratio_low and clip_ratio_high; log_ratio_bound: null.",
        "liger-kernel": "delta with epsilon_low and epsilon_high; log_ratio_bound: null.",
        "unsloth-zoo": "delta with epsilon_low and epsilon_high; log_ratio_bound: null.",
        "ms-swift": "delta; log_ratio_bound: null.",
    },
)
def two_sided_delta(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    delta: Annotated[Positive, "the largest ratio that a negative advantage is multiplied by"] = 4.0,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Cap the unclipped ratio at ``delta`` before taking PPO's minimum: ``dual-clip`` with :math:`c = \delta`, as TRL spells it.

    .. math:: L_t = \max\bigl(-\min(r_t, \delta)\, A_t,\; -\operatorname{clip}(r_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr)

    ``[N]``, in units of the advantage. Above :math:`1 + \epsilon_{high}` the cap touches negative advantages only. Below it the two
    bounds change places: ``delta`` becomes the upper clip of positive advantages, and :math:`1 + \epsilon_{high}` caps negative ones.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    high, cap = min(clip_ratio_high, delta - 1), max(delta, 1 + clip_ratio_high)
    return clipped_surrogate(log_ratio, advantages, clip_ratio_low, high, cap)
