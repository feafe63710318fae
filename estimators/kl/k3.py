"""k3: the log-ratio with a control variate that takes out most of its noise."""

import torch

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Cap, Gradient, shaped


@kl_estimator(aliases=("low_var_kl",), paper="arXiv:2402.03300", scope="token", claims=("zero-at-equality", "non-negative"))
def k3(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    *,
    gradient: Gradient = "own",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
) -> PerToken:
    r"""Return GRPO's estimate: unbiased like ``k1``, never negative, and quiet near equality.

    .. math:: k_3 = e^x - 1 - x, \qquad x = \ell^{ref} - \ell

    ``[N]``, in nats. Its own gradient :math:`1 - e^x` grows exponentially where the policy has lost a token of the reference, and is no
    unbiased gradient of KL(policy || reference). Equation 4 of the paper. verl clamps the result: ``cap: 10``, which takes the pull
    from the tokens that have drifted most.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    return shaped(torch.expm1(-log_ratio) + log_ratio, log_ratio, gradient, cap)  # expm1 keeps what exp(x) - 1 would round away
