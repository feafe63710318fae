"""IW-OPD: distil the early tokens harder, since all that follows depends on them."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import score_loss, scored
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import NonNegative, Positive


@policy_loss(
    paper="arXiv:2606.22600",
    scope="sequence",
    compat={
        "trl": "IW-OPD: iw_opd_gamma and iw_opd_epsilon as there.",
    },
)
def iw_opd(
    log_prob: PerToken,
    teacher_log_prob: PerToken,
    sequences: Sequences,
    rollout_log_prob: PerToken | None = None,
    *,
    iw_opd_gamma: Annotated[NonNegative, "how much more the first token of a sequence weighs than one after all disagreement"] = 0.5,
    iw_opd_epsilon: Annotated[Positive, "the least that a sequence's summed disagreement divides by [nats]"] = 1e-8,
) -> tuple[PerToken, Report]:
    r"""Weigh the teacher's log-ratio by the share of the sequence's disagreement that is still to come; ``opd`` weighs all tokens alike.

    .. math:: L_t = -w_t\, a_t\, \ell_t, \qquad a_t = \operatorname{sg}(\ell^{tea}_t - \ell^{roll}_t), \qquad
        w_t = 1 + \gamma \Bigl(1 - \frac{\sum_{j < t} |a_j|}{\sum_j |a_j|}\Bigr)

    ``[N]``, in squared nats. No ratio. Where the sampler scored no token, or the batch brings no ``rollout_log_prob``, the current
    policy stands in for it.
    """
    behaviour = log_prob.detach() if rollout_log_prob is None else scored(rollout_log_prob, log_prob)
    gap = teacher_log_prob - behaviour
    size = gap.abs()
    before = sequences.cumsum(size) - size
    weight = 1 + iw_opd_gamma * (1 - before / sequences.spread(sequences.sum(size)).clamp(min=iw_opd_epsilon))
    return score_loss(weight, gap, log_prob), {"iw_opd/weight": Mean(weight), "teacher_kl": Mean(-gap)}
