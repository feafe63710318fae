"""KDRL: a teacher's view of the student's own tokens, beside the reward."""

from typing import Annotated

from ...numerics import bounded_log_ratio
from ...registry import Mean, PerToken, Report, auxiliary_loss
from ...registry.hyper import LogRatioBound


@auxiliary_loss(
    claims=("zero-at-equality",),
    scope="token",
    compat={
        "areal": "distill_loss_weight is coef; weigh: false beside a reward, weigh: true where rl_loss_weight is 0; log_ratio_bound: null.",
    },
)
def kdrl(
    log_prob: PerToken,
    old_log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    weigh: Annotated[bool, "whether the ratio weighs the detached gap; false: the plain gap, whose gradient knows no teacher"] = True,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Estimate KL(policy || teacher) from sampled tokens with a gradient that is right; ``opd`` clips it as a policy loss.

    .. math:: L_t = r_t \operatorname{sg}(\ell_t - \ell^{tea}_t) \ (\text{weigh}) \qquad\text{or}\qquad L_t = \ell_t - \ell^{tea}_t

    ``[N]``, in nats; :math:`r_t` is the ratio to the old policy. Without ``weigh`` the value is the same on policy, but the gradient is 1
    for every token: a plain penalty on likelihood that knows no teacher. AReaL takes that form beside a reward.
    """
    gap = log_prob - teacher_log_prob
    report = {"teacher_kl": Mean(gap.detach())}
    if not weigh:
        return gap, report
    return bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound).exp() * gap.detach(), report
