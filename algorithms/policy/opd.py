"""On-policy distillation: the teacher's verdict on the student's own tokens, as an advantage."""

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound, Positive
from .dual_clip import RatioCap


@policy_loss(aliases=("on-policy-distill",), paper="arXiv:2306.13649", scope="token")
def opd(
    log_prob: PerToken,
    old_log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    opd_kl_coef: Positive = 1.0,
    loss_max_clamp: Positive = 10.0,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    clip_ratio_c: RatioCap = 3.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``dual-clip`` with the teacher's log-ratio as the advantage: no reward, no critic, no group.

    .. math:: A_t = \kappa \operatorname{sg}\bigl(\operatorname{clip}(\ell^{tea}_t - \ell_t, -m, m)\bigr)

    ``[N]``, in nats. On policy the gradient is that of KL(student || teacher), up to the clamp. The student's side is the current
    policy, as in verl; where the policy has not moved since the step began, it is the old one, as in slime and Trinity-RFT.
    """
    gap = (teacher_log_prob - log_prob.detach()).clamp(-loss_max_clamp, loss_max_clamp)
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    loss, report = clipped_surrogate(log_ratio, opd_kl_coef * gap, clip_ratio_low, clip_ratio_high, clip_ratio_c)
    return loss, {**report, "teacher_kl": Mean((log_prob - teacher_log_prob).detach())}
