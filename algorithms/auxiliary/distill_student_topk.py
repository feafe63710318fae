"""SDPO's distillation over the tokens that the student itself holds likeliest: on-policy also in what is compared."""

from typing import Annotated, Literal

from ...numerics import bounded_log_ratio, log_prob_of, renormalised, subset_jensen_shannon, with_tail
from ...registry import ColumnError, Mean, PerToken, Report, Vocab, auxiliary_loss
from ...registry.hyper import Count, LogRatioBound, Positive
from .distill import Beta


@auxiliary_loss(
    claims=("zero-at-equality",),
    paper="arXiv:2601.20802",
    scope="token",
    compat={
        "trl": "SDPO's top-k form: beta is its alpha; `others: tail` is add_tail, otherwise `renormalise`; is_clip: 2.0 if it weighs.",
    },
)
def distill_student_topk(
    logits: Vocab,
    teacher_logits: Vocab,
    log_prob: PerToken | None = None,
    old_log_prob: PerToken | None = None,
    *,
    topk: Annotated[Count, "how many of the student's likeliest tokens are compared"] = 100,
    beta: Beta = 0.5,
    others: Annotated[Literal["tail", "renormalise"], "what becomes of all other tokens: one more outcome, or conditioned away"] = "tail",
    is_clip: Annotated[Positive | None, "the largest ratio to the old policy that weighs a token; null: no ratio at all"] = None,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the Jensen-Shannon divergence over the student's top K; in ``distill-topk`` it is the teacher who chooses.

    .. math:: L_t = \beta KL(q^K \| m) + (1 - \beta) KL(p^K \| m), \qquad m = \beta q^K + (1 - \beta) p^K

    ``[n]``, in nats; :math:`\beta = 0` is :math:`KL(q^K \| p^K)` and 1 the reverse. :math:`p^K, q^K` are student and teacher on those
    tokens, with one more outcome for all others (``tail``) or given that it was none of them (``renormalise``). Which tokens those are has no
    gradient. With ``is_clip`` a token's loss is multiplied by :math:`\operatorname{sg} \min(r_t, c)`, its ratio to the old policy; then
    ``log_prob`` and ``old_log_prob`` are needed, and a batch without them raises ``ColumnError``.
    """
    ids = logits.detach().topk(min(topk, logits.shape[-1]), dim=-1).indices
    student, teacher = log_prob_of(logits, ids), log_prob_of(teacher_logits.detach(), ids)
    p, q = (with_tail(x) if others == "tail" else renormalised(x) for x in (student, teacher))
    loss = subset_jensen_shannon(p, q, beta)
    report = {"student_mass": Mean(student.detach().exp().sum(-1)), "teacher_mass": Mean(teacher.exp().sum(-1))}
    if is_clip is None:
        return loss, report
    if log_prob is None or old_log_prob is None:
        raise ColumnError(
            "auxiliary_loss 'distill-student-topk' with is_clip needs 'log_prob' and 'old_log_prob', which are not both there."
        )
    ratio = bounded_log_ratio(log_prob.detach(), old_log_prob, log_ratio_bound).exp()
    return ratio.clamp(max=is_clip) * loss, report
