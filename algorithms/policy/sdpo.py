"""SDPO: the policy, having seen the feedback, is the teacher of itself on the tokens that it sampled without."""

from typing import Annotated

from ...numerics import bounded_log_ratio, capped, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, Positive


@policy_loss(
    aliases=("sdft",),
    paper="arXiv:2601.20802",
    scope="token",
    suits={"is_clip": ">= 1"},
    compat={
        "trl": "SDPO's form on sampled tokens (distillation_alpha 1): is_clip as there.",
    },
)
def sdpo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    is_clip: Annotated[Positive | None, "the largest ratio that weighs a token; null: no ratio at all"] = 2.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Weigh each log-probability by the detached gap to the teacher; ``opd`` clips the ratio, this only caps it as a weight.

    .. math:: L_t = \operatorname{sg}\bigl((\ell_t - \ell^{tea}_t)\, \min(r_t, c)\bigr)\, \ell_t

    ``[N]``, in squared nats. The form on sampled tokens; ``is_clip: null`` leaves the ratio out altogether.
    """
    gap = (teacher_log_prob - log_prob).detach()
    report = {"teacher_kl": Mean(-gap)}
    if is_clip is None:
        return score_loss(gap, gap.new_ones(()), log_prob), report
    ratio = bounded_log_ratio(log_prob.detach(), old_log_prob, log_ratio_bound).exp()
    return score_loss(capped(ratio, is_clip), gap, log_prob), report
