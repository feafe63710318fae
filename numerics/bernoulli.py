"""Divergences between two policies as one token shows them: sampled or not."""

import torch
from torch import Tensor

from .straight_through import sloped
from .sums import accumulator

_SPARE = 1e-8


def probability_shift(log_prob: Tensor, other: Tensor) -> Tensor:
    """Return ``exp(log_prob) - exp(other)``, between -1 and 1: its size is the binary total variation. No gradient."""
    return log_prob.detach().exp() - other.exp()


def binary_kl(other: Tensor, log_prob: Tensor) -> Tensor:
    """Return KL [nats] of the coin that shows this token with ``exp(other)`` from the one with ``exp(log_prob)``; never negative.

    Both chances of the reverse side are kept 1e-8 above 0. A gradient flows through ``other`` alone, and none where that is infinite.
    A log-probability above 0 counts as 0.
    """
    wide = accumulator(other)
    mine, new = other.detach().to(wide).clamp(max=0), log_prob.detach().to(wide).clamp(max=0)
    # 1 - exp(x) would round away what likely tokens leave to the others
    rest, new_rest = _SPARE - mine.expm1(), _SPARE - new.expm1()
    apart, others = torch.where(mine == -torch.inf, 0.0, mine - new), (rest / new_rest).log()
    value = (mine.exp() * apart + rest * others).clamp(min=0)
    slope = torch.where(other.detach() > 0, 0.0, mine.exp() * (apart - others))
    return sloped(value.to(other.dtype), slope.to(other.dtype), other)


def clamped_binary_kl(log_prob: Tensor, other: Tensor, epsilon: float) -> Tensor:
    """Return KL [nats] of the coin with ``exp(log_prob)`` from that with ``exp(other)``, all four chances at least ``epsilon``.

    Exactly 0 at equality, whatever the epsilon: none is so small that the logarithm of a chance would be infinite. No gradient.
    """
    wide = accumulator(log_prob)
    least = max(epsilon, torch.finfo(wide).tiny)
    (p, p_rest), (q, q_rest) = (
        (x.exp().clamp(least, 1 - least), (-x.expm1()).clamp(least, 1 - least)) for x in (y.detach().to(wide) for y in (log_prob, other))
    )
    kl = p * (p.log() - q.log()) + p_rest * (p_rest.log() - q_rest.log())
    return kl.clamp(min=0).to(log_prob.dtype)
