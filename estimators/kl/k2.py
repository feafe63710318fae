"""k2: half the squared log-ratio."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Cap, Gradient, shaped


@kl_estimator(aliases=("mse",), paper="http://joschu.net/blog/kl-approx.html", scope="token", claims=("zero-at-equality", "non-negative"))
def k2(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    *,
    gradient: Gradient = "own",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
) -> PerToken:
    r"""Return half the squared log-ratio: biased as a value, but as a loss its gradient is the KL's own, which that of ``k3`` is not.

    .. math:: k_2 = \tfrac12 (\ell - \ell^{ref})^2

    ``[N]``, in nats (by its expansion around equality). The gradient is :math:`\ell - \ell^{ref}` (arXiv:2510.01555).
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    return shaped(0.5 * log_ratio.square(), log_ratio, gradient, cap)
