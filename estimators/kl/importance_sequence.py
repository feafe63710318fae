"""importance-sequence: an estimate of each token, weighted by the ratio of its whole sequence."""

from typing import Annotated, Literal

from pydantic import Field

from ...batch import Sequences
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .abs import absolute
from .gradient import Anchor, Cap, ImportanceCap, log_importance, weighted
from .k1 import k1
from .k2 import k2
from .k3 import k3

ESTIMATES = {"k1": k1, "k2": k2, "k3": k3, "abs": absolute}
Ratio = Annotated[
    Literal["geometric", "product"], Field(description="a sequence's ratio is the geometric mean or the product of its tokens' ratios")
]


@kl_estimator(
    scope="sequence",
    suits={"cap": "null"},
    claims=("zero-at-equality", "unbiased"),
    compat={
        "trl": "use_bias_correction_kl (its default) with importance_sampling_level: sequence: log_ratio_bound: null, importance_cap: null.",
    },
)
def importance_sequence(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    sequences: Sequences,
    old_log_prob: PerToken | None = None,
    rollout_log_prob: PerToken | None = None,
    *,
    estimate: Annotated[Literal["k1", "k2", "k3", "abs"], "which estimate of the KL each token has"] = "k3",
    ratio: Ratio = "geometric",
    anchor: Anchor = "old",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
    importance_cap: ImportanceCap = 10.0,
) -> PerToken:
    r"""Weigh each token's estimate by one ratio per sequence, where ``k3-importance`` has one per token.

    .. math:: w\, k(d_t), \qquad w = \min(\rho, importance\_cap), \qquad
        \rho = \begin{cases} e^{\frac{1}{T} \sum_u (\ell_u - \ell^{anchor}_u)} & \text{geometric} \\
        e^{\sum_u (\ell_u - \ell^{anchor}_u)} & \text{product} \end{cases}

    ``[N]``, in nats, with :math:`d = \ell - \ell^{ref}`. The gradient by :math:`\ell_t` is :math:`w\, k'(d_t)` and, through the ratio,
    :math:`w` times the sum (``geometric``: the mean) of the estimates of all its sequence's tokens, as the aggregation weighs them:

    ========  ===========================  =====================================================================================
    estimate  own part ``k'``              with ``product`` and the cap not binding, in expectation
    ========  ===========================  =====================================================================================
    k1, k3    ``1``, ``1 - e^-d``          the gradient of the KL of whole sequences, what a token does to later ones included
    k2, abs   ``d``, ``sign(d)``           the gradient of the mean of the estimate, which is not the KL
    ========  ===========================  =====================================================================================

    ``geometric`` trades that for ratios near 1: it is biased. A log-ratio beyond ``log_ratio_bound`` has no gradient. An absent anchor
    raises ``ColumnError``.
    """
    value = ESTIMATES[estimate](log_prob, ref_log_prob, log_ratio_bound=log_ratio_bound)
    log_weight = log_importance(log_prob, old_log_prob, rollout_log_prob, anchor, "importance-sequence")
    whole = sequences.mean(log_weight) if ratio == "geometric" else sequences.sum(log_weight)
    distance = log_prob - ref_log_prob
    alive = distance.abs() <= (float("inf") if log_ratio_bound is None else log_ratio_bound)
    value = weighted(value, sequences.spread(whole), alive, importance_cap)
    return value if cap is None else value.clamp(-cap, cap)
