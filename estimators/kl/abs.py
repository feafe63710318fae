"""abs: the size of the log-ratio."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Cap, Gradient, shaped


@kl_estimator(name="abs", scope="token", claims=("zero-at-equality", "non-negative"))
def absolute(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    *,
    gradient: Gradient = "own",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
) -> PerToken:
    r"""Return the size of the log-ratio: a distance and not an estimate of the KL, whose pull (:math:`\pm 1`) is the same near and far.

    .. math:: k_{abs} = |\ell - \ell^{ref}|

    ``[N]``, in nats.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    return shaped(log_ratio.abs(), log_ratio, gradient, cap)
