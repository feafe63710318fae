"""On-policy distillation: the teacher's verdict on the student's own tokens, as an advantage."""

from typing import Annotated, Literal

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive
from .dual_clip import RatioCap

Student = Annotated[
    Literal["current", "old"], "whose log-probability the teacher is compared with: the policy as it is now, or as the step began"
]


@policy_loss(
    aliases=("on-policy-distill",),
    paper="arXiv:2306.13649",
    scope="token",
    suits={"clip_ratio_c": "> 1 + clip_ratio_high"},
    compat={
        "verl": "distillation loss_mode k1 with use_policy_gradient: loss_max_clamp, and clip_ratio as both bounds.",
        "trinity-rft": "`on_policy_distill` with the ppo loss: kl_coef is opd_kl_coef; student: old, loss_max_clamp: null.",
    },
)
def opd(
    log_prob: PerToken,
    old_log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    opd_kl_coef: Annotated[Positive, "what the teacher's log-ratio is multiplied by"] = 1.0,
    loss_max_clamp: Annotated[Positive | None, "the teacher's log-ratio is clamped to +- this [nats]; null: never"] = 10.0,
    student: Student = "current",
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    clip_ratio_c: RatioCap = 3.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``dual-clip`` with the teacher's log-ratio as the advantage: no reward, no critic, no group.

    .. math:: A_t = \kappa \operatorname{sg}\bigl(\operatorname{clip}(\ell^{tea}_t - \ell^{stu}_t, -m, m)\bigr)

    ``[N]``, in nats. On policy the gradient is that of KL(student || teacher), up to the clamp. ``student: current`` measures the policy
    as it now is, as verl does; ``old`` as it was when the step began, so that the advantage stands still, as in Trinity-RFT.
    """
    gap = teacher_log_prob - (log_prob.detach() if student == "current" else old_log_prob)
    gap = gap if loss_max_clamp is None else gap.clamp(-loss_max_clamp, loss_max_clamp)
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    loss, report = clipped_surrogate(log_ratio, opd_kl_coef * gap, clip_ratio_low, clip_ratio_high, clip_ratio_c)
    return loss, {**report, "teacher_kl": Mean((log_prob - teacher_log_prob).detach())}
