"""A critic that says how likely each return is, taught each return as the two points around it."""

from ...numerics import bin_points, cross_entropy, decoded
from ...numerics import two_hot as shared_out
from ...registry import Mean, PerToken, Report, Vocab, value_loss
from .support import High, Low, Support


@value_loss(
    scope="token",
    params=Support,
    claims=("non-negative",),
    compat={
        "rlax": "the target is transform_to_2hot, but for the 1e-5 that it adds to a bin's width; low and high are its min_value and max_value."
    },
)
def two_hot(value_logits: Vocab, returns: PerToken, *, low: Low = -1.0, high: High = 1.0) -> tuple[PerToken, Report]:
    r"""Return the cross-entropy of the critic's bins with a return that two neighbours share; ``hl-gauss`` spreads it further.

    .. math:: L_t = -\sum_k y_k \log p_k, \qquad y_k = \max\Bigl(0,\, 1 - \frac{|R_t - c_k|}{c_{k + 1} - c_k}\Bigr), \qquad V_t = \sum_k p_k c_k

    ``[n]``, in nats, from logits ``[n, K]``, K >= 2; the points :math:`c_k` run evenly from ``low`` to ``high``, which should hold all returns, in their
    unit. The mean of the target is the return. A return outside is taught as the nearest end (``returns_outside`` says how often). The
    critic's value is ``decoded(value_logits, bin_points(value_logits, low, high))``.
    """
    points = bin_points(value_logits, low, high)
    outside = (returns < low) | (returns > high)
    report = {"vpred_mean": Mean(decoded(value_logits.detach(), points)), "returns_outside": Mean(outside)}
    return cross_entropy(value_logits, shared_out(returns, points)), report
