"""SDAR: imitate oneself where the teacher, who has seen more, agrees that the token is good."""

from typing import Annotated

from ...numerics import straight_through
from ...registry import Mean, PerToken, Report, auxiliary_loss
from ...registry.hyper import NonNegative


@auxiliary_loss(
    claims=("zero-at-equality",),
    paper="arXiv:2605.15155",
    scope="token",
    compat={
        "ms-swift": "SDAR: gate_beta as there; token-mean.",
    },
)
def sdar(
    log_prob: PerToken,
    teacher_log_prob: PerToken,
    *,
    gate_beta: Annotated[NonNegative, "how sharply the gate opens as the teacher likes a token more [per nat]"] = 5.0,
) -> tuple[PerToken, Report]:
    r"""Make every token likelier, by a gate that opens where the teacher likes it more; ``kdrl`` also makes tokens less likely.

    .. math:: L_t = g_t\, (\ell^{tea}_t - \ell_t), \qquad g_t = \sigma\bigl(\beta \operatorname{sg}(\ell^{tea}_t - \ell_t)\bigr)

    ``[N]``, in nats. The gradient is :math:`-g_t`, never positive: it only ever pushes up, from 0 where the teacher thinks little of
    the token to 1 where it thinks much more of it. The value is a gap and may be negative.
    """
    gap = teacher_log_prob - log_prob.detach()
    gate = (gate_beta * gap).sigmoid()
    report = {"sdar/gate": Mean(gate), "sdar/gate_active": Mean(gap > 0), "sdar/teacher_gap": Mean(gap)}
    return gate * straight_through(gap, -log_prob), report
