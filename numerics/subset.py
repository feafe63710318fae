"""Distributions known by some of their tokens only: ``[n, K]`` log-probabilities [nats] of the same tokens on both sides.

Ordinary differentiable functions: K is small. A token of probability 0 counts for nothing on the side that weighs it, and one that only
the other side cannot say counts as far as an exponential reaches (87 nats in float32).
"""

import torch
from torch import Tensor

from .divergence import log_mixture
from .ratio import bounded

_FULLEST = -1e-7


def renormalised(log_prob: Tensor) -> Tensor:
    """``[n, K] -> [n, K]``: the distribution given that one of these tokens was drawn."""
    return log_prob - _log_mass(log_prob, 0.0)


def with_tail(log_prob: Tensor) -> Tensor:
    """``[n, K] -> [n, K + 1]``: one more outcome for all other tokens together, whose probability is at least 1e-7."""
    mass = _log_mass(log_prob, -torch.inf).clamp(max=_FULLEST)
    return torch.cat([log_prob, torch.log(-torch.expm1(mass))], -1)


def weighted_gap(log_a: Tensor, log_b: Tensor) -> Tensor:
    r"""``[n, K] -> [n]``: :math:`\sum_k a_k \log(a_k / b_k)`: a KL divergence if both sum to 1, and otherwise a part of one."""
    said = log_a.exp() > 0
    safe = torch.where(said, log_a, 0.0)
    return torch.where(said, safe.exp() * bounded(safe - log_b, None), 0.0).sum(-1)


def subset_jensen_shannon(log_p: Tensor, log_q: Tensor, beta: float) -> Tensor:
    r"""``[n, K] -> [n]``: ``jensen_shannon`` over these tokens, where 0 gives the gap of :math:`q` from :math:`p` and 1 that of :math:`p`."""
    if beta in (0, 1):
        return weighted_gap(log_p, log_q) if beta else weighted_gap(log_q, log_p)
    unsaid = (log_p == -torch.inf) & (log_q == -torch.inf)
    log_m = log_mixture(torch.where(unsaid, 0.0, log_q), torch.where(unsaid, 0.0, log_p), beta)
    return beta * weighted_gap(log_q, log_m) + (1 - beta) * weighted_gap(log_p, log_m)


def _log_mass(log_prob: Tensor, none: float) -> Tensor:
    """Return the logarithm of the sum, and ``none`` where nothing is in it: there the sum itself has no gradient but NaN."""
    some = (log_prob > -torch.inf).any(-1, keepdim=True)
    return torch.where(some, torch.where(some, log_prob, 0.0).logsumexp(-1, keepdim=True), none)
