"""HL-Gauss: a critic that says how likely each return is, taught each return as a bell curve over its bins."""

from ...numerics import bin_centres, cross_entropy, decoded
from ...numerics import hl_gauss as smeared
from ...registry import Mean, PerToken, Report, Vocab, value_loss
from .support import High, Low, SigmaRatio, SmoothedSupport


@value_loss(paper="arXiv:2403.03950", scope="token", params=SmoothedSupport, claims=("non-negative",))
def hl_gauss(
    value_logits: Vocab, returns: PerToken, *, low: Low = -1.0, high: High = 1.0, sigma_ratio: SigmaRatio = 0.75
) -> tuple[PerToken, Report]:
    r"""Return the cross-entropy of the critic's bins with a normal distribution around the return; ``two-hot`` gives it two bins only.

    .. math:: L_t = -\sum_k y_k \log p_k, \qquad
        y_k = \frac{\Phi((e_{k + 1} - R_t) / s) - \Phi((e_k - R_t) / s)}{\Phi((e_K - R_t) / s) - \Phi((e_0 - R_t) / s)}, \qquad
        V_t = \sum_k p_k \frac{e_k + e_{k + 1}}{2}

    ``[n]``, in nats, from logits ``[n, K]``, K >= 2; the edges :math:`e_k` run evenly from ``low`` to ``high``, which should hold all returns, in
    their unit; :math:`s` is ``sigma_ratio`` bins. A return outside is taught as the nearest edge (``returns_outside`` says how often). The critic's value
    is ``decoded(value_logits, bin_centres(value_logits, low, high))``; near the edges it is drawn inwards, so leave some room there.
    """
    centres = bin_centres(value_logits, low, high)
    outside = (returns < low) | (returns > high)
    report = {"vpred_mean": Mean(decoded(value_logits.detach(), centres)), "returns_outside": Mean(outside)}
    return cross_entropy(value_logits, smeared(returns, centres, sigma_ratio)), report
