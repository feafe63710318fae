"""What Clip-Cov and KL-Cov share: which tokens drive the entropy down."""

from torch import Tensor

from ...numerics import accumulator


def covariance(advantages: Tensor, log_prob: Tensor) -> Tensor:
    """``[N] -> [N]``: each token's share in the covariance of advantage and log-probability over all tokens. No gradient."""
    a, p = advantages.to(accumulator(advantages)), log_prob.detach().to(accumulator(log_prob))
    count = max(a.shape[0], 1)
    return ((a - a.sum() / count) * (p - p.sum() / count)).to(log_prob.dtype)


def smallest(key: Tensor, count: int) -> Tensor:
    """``[N] -> [N]``: whether a token is among the ``count`` smallest keys."""
    return key.argsort(stable=True).argsort() < count
