"""k1: the log-ratio itself."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Cap, Gradient, shaped


@kl_estimator(
    aliases=("kl",), paper="http://joschu.net/blog/kl-approx.html", scope="token", suits={"apply": "reward"}, claims=("zero-at-equality",)
)
def k1(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    *,
    gradient: Gradient = "own",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
) -> PerToken:
    r"""Return the log-ratio: unbiased like ``k3`` but noisier and of either sign; for the reward, not for the loss.

    .. math:: k_1 = \ell - \ell^{ref}

    ``[N]``, in nats. As a loss its own gradient is 1 for every token, which is 0 in expectation: it pulls nowhere, unless
    ``gradient: straight-through`` lends it that of ``k2``.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    return shaped(log_ratio, log_ratio, gradient, cap)
