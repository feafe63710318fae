"""On-policy distillation as an advantage: a token is good as far as the teacher finds it likelier than the policy does."""

from typing import Annotated

from ...registry import ColumnError, PerToken, advantage_estimator
from ...registry.hyper import NonNegative


@advantage_estimator(
    scope="token",
    compat={
        "nemo-rl": "use `opd`; its OPDAdvantageEstimator reads the same two columns.",
        "slime": "use `opd: {opd_kl_coef: ..., add: true}` after the estimator and before `whiten`.",
        "roll": "use `opd` for is_pure_opd with one teacher and k1, and `opd: {add: true}` for use_opd.",
        "ms-swift": "use `opd: {opd_kl_coef: ..., add: true}` after the estimator.",
        "verl": "its distillation with k1 as a policy gradient has the same advantage, by the trained policy instead of the old one.",
    },
)
def opd(
    teacher_log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken | None = None,
    *,
    opd_kl_coef: Annotated[NonNegative, "what the teacher's log-ratio is multiplied by"] = 1.0,
    add: Annotated[bool, "whether the advantages made before stay; false: they are replaced"] = False,
) -> PerToken:
    r"""Give each token the teacher's log-ratio: a reward by the token that no judge has to pay, where ``rlsd`` only scales what a judge paid.

    .. math:: A'_t = c\,(\ell^{teacher}_t - \ell^{old}_t) \quad (+\,A_t \text{ with } add)

    ``[N]``, in nats times ``opd_kl_coef``. In expectation its gradient is that of the reverse KL to the teacher, token by token: nothing is
    summed over what follows. With ``add`` the advantages made before stay, and where there are none ``ColumnError`` is raised.
    """
    pull = opd_kl_coef * (teacher_log_prob - old_log_prob)
    if not add:
        return pull
    if advantages is None:
        raise ColumnError("opd with add=True needs 'advantages'; put it after another estimator in a chain.")
    return advantages + pull
