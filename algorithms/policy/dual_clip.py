"""Dual-clip PPO: the clipped surrogate with a ceiling on what a bad token can cost."""

from typing import Annotated

from pydantic import Field

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound

RatioCap = Annotated[float, Field(gt=1, description="the largest ratio that a negative advantage is multiplied by")]


@policy_loss(
    aliases=("vanilla",),
    paper="arXiv:1912.09729",
    scope="token",
    suits={"clip_ratio_c": "> 1 + clip_ratio_high"},
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"pulls-back@clip_ratio_c=1.5": "Past the cap a bad token is left alone, which is the idea of it: a low cap leaves it early."},
    compat={
        "verl": "`vanilla`, always on: clip_ratio_low, clip_ratio_high and clip_ratio_c as there; clip_ratio alone changes nothing there.",
        "trl": "delta is clip_ratio_c as long as it exceeds 1 + epsilon_high, else see `two-sided-delta`; log_ratio_bound: null.",
        "skyrl": "`dual_clip`: eps_clip_low, eps_clip_high and clip_ratio_c; log_ratio_bound: 20.",
        "areal": "its PPO loss with c_clip, which is clip_ratio_c; log_ratio_bound: null.",
        "slime": "its policy loss with eps_clip_c, which is clip_ratio_c; log_ratio_bound: null.",
        "openrlhf": "`ppo` with dual_clip, which is clip_ratio_c; log_ratio_bound: 20.",
        "nemo-rl": "ClippedPGLossFn with ratio_clip_c, which is clip_ratio_c; log_ratio_bound: null.",
        "roll": "`ppo` with dual_clip_loss: clip_ratio_c is fixed at 1 + 2 pg_clip; log_ratio_bound: null.",
        "trinity-rft": "`ppo`, always on with clip_ratio_c: 3.",
        "MM-EUREKA": "its ratio is capped at 3 before both branches: clip_ratio_c: 3.",
    },
)
def dual_clip(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    clip_ratio_c: RatioCap = 3.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip each token's ratio as ``ppo-clip`` does, and cap the loss of a negative advantage at :math:`c\,|A_t|` (verl's ``vanilla``).

    .. math:: L_t = \begin{cases} L^{clip}_t & A_t \ge 0 \\ \min\bigl(L^{clip}_t,\; -c\,A_t\bigr) & A_t < 0 \end{cases}

    ``[N]``, in units of the advantage. Past the cap (:math:`r_t > c`) the gradient is 0: a token that the old policy found all but
    impossible no longer dominates the step. INTELLECT-2's two-sided ``delta`` is the same number under another name.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    return clipped_surrogate(log_ratio, advantages, clip_ratio_low, clip_ratio_high, clip_ratio_c)
