r"""How far a distribution over the vocabulary is from another one: exact sums over all tokens, with gradients in closed form.

Throughout :math:`p` belongs to ``logits``, which learn, and :math:`q` to ``other``, which do not; both are ``[n, V]`` [nats] and the result
is ``[n]`` [nats], never negative. Where one side cannot say what the other can, the log-ratio is infinite and counts as the largest one
whose exponential does not overflow (87 nats in float32).
"""

import math

import torch
from torch import Tensor

from .ratio import bounded
from .sums import safe_divide
from .vocabulary import log_softmax, through_softmax

_STEPS, _RAREST = 32, -100.0


def reverse_kl(logits: Tensor, other: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`KL(p \| q)`, which forbids what :math:`q` would not say; its slope is :math:`p_v (\log p_v/q_v - KL)`."""
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    value, p, pull = _reverse(log_p, log_q)
    return through_softmax(logits, value, p, pull, temperature)


def forward_kl(logits: Tensor, other: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`KL(q \| p)`, which demands all that :math:`q` would say; its slope is :math:`p_v - q_v`, even past the bound."""
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    value, q = _kl(log_q, log_p)
    return through_softmax(logits, value, log_p.exp_(), q.neg_(), temperature)


def jensen_shannon(logits: Tensor, other: Tensor, beta: float = 0.5, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`\beta KL(q \| m) + (1 - \beta) KL(p \| m)` with :math:`m = \beta q + (1 - \beta) p`.

    Its ends are taken to be what it tends to when divided by :math:`\beta (1 - \beta)`: ``forward_kl`` at 0 and ``reverse_kl`` at 1.
    """
    if beta in (0, 1):
        return (reverse_kl if beta else forward_kl)(logits, other, temperature)
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    log_m = log_mixture(log_q, log_p, beta)
    value = beta * _kl(log_q, log_m)[0]
    less, p = _kl(log_p, log_m)
    pull = log_p.sub_(log_m).mul_(p).masked_fill_(p == 0, 0.0).mul_(1 - beta)
    return through_softmax(logits, value + (1 - beta) * less, p, pull, temperature)


def skewed_forward_kl(logits: Tensor, other: Tensor, skew: float, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`KL(q \| \lambda q + (1 - \lambda) p)`, which is at most :math:`-\log \lambda`: no token can demand without limit."""
    if skew == 0:
        return forward_kl(logits, other, temperature)
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    log_m = log_mixture(log_q, log_p, skew)
    value, q = _kl(log_q, log_m)
    p = log_p.exp()
    pull = log_p.sub_(log_m).exp_().mul_(q).masked_fill_(q == 0, 0.0).mul_(skew - 1)
    return through_softmax(logits, value, p, pull, temperature)


def skewed_reverse_kl(logits: Tensor, other: Tensor, skew: float, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`KL(p \| \lambda p + (1 - \lambda) q)`, which is at most :math:`-\log \lambda`: no token can be forbidden without limit."""
    if skew == 0:
        return reverse_kl(logits, other, temperature)
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    log_m = log_mixture(log_p, log_q, skew)
    value, p = _kl(log_p, log_m)
    apart = log_p.sub_(log_m)
    pull = apart.sub_(apart.exp().mul_(skew)).mul_(p).masked_fill_(p == 0, 0.0)
    return through_softmax(logits, value, p, pull, temperature)


def adaptive_kl(logits: Tensor, other: Tensor, alpha: float = 0.5, temperature: float = 1.0) -> Tensor:
    r"""Return :math:`w\, KL(q \| p) + (1 - w)\, KL(p \| q)`, where :math:`w` is the head's share of :math:`\sum_v |q_v - p_v|`.

    The tail is as many of the least likely tokens of :math:`q` as together weigh at most ``alpha``, the head is all others.
    :math:`w` has no gradient. Without a tail (``alpha`` 0) it is ``forward_kl`` itself, without a head (1) ``reverse_kl``.
    """
    if alpha in (0, 1):
        return (reverse_kl if alpha else forward_kl)(logits, other, temperature)
    log_p, log_q = log_softmax(logits, temperature), log_softmax(other, temperature)
    head = log_q > _tail_end(log_q, alpha).unsqueeze(-1)
    forward, q = _kl(log_q, log_p)
    reverse, p, pull = _reverse(log_p, log_q)
    apart = (q - p).abs_()
    weight = safe_divide(torch.where(head, apart, 0.0).sum(-1), apart.sum(-1))
    w = weight.unsqueeze(-1)
    return through_softmax(logits, weight * forward + (1 - weight) * reverse, p, pull.mul_(1 - w).sub_(q.mul_(w)), temperature)


def log_mixture(log_a: Tensor, log_b: Tensor, weight: float) -> Tensor:
    """Return the logarithm of ``weight * a + (1 - weight) * b``, for a weight strictly between 0 and 1."""
    return torch.logaddexp(log_a + math.log(weight), log_b + math.log1p(-weight))


def _kl(log_a: Tensor, log_b: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return :math:`KL(a \| b)` and :math:`a`.

    :math:`\sum b - \sum a` is 0 but for rounding, and takes out of the sum what a rounded normaliser puts into every term of it.
    """
    a = log_a.exp()
    gaps = bounded(log_a - log_b, None).mul_(a).masked_fill_(a == 0, 0.0)
    return (gaps.sum(-1) + (log_b.exp().sum(-1) - a.sum(-1))).clamp_(min=0.0), a


def _reverse(log_p: Tensor, log_q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the reverse KL, ``p`` and what pulls: past the bound it is no longer the ratio itself that grows."""
    value, p = _kl(log_p, log_q)
    apart = log_p - log_q
    near = bounded(apart, None)
    pull = (near + (near == apart)).mul_(p).masked_fill_(p == 0, 0.0)
    return value, p, pull


def _tail_end(log_q: Tensor, alpha: float) -> Tensor:
    """``[n, V] -> [n]``: the largest log-probability up to which a tail reaches, by bisection: no sort, and ties stay together."""
    q = log_q.exp()
    low, high = torch.full_like(log_q[..., 0], _RAREST), torch.zeros_like(log_q[..., 0])
    for _ in range(_STEPS):
        middle = (low + high) / 2
        fits = torch.where(log_q <= middle.unsqueeze(-1), q, 0.0).sum(-1) <= alpha
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return low
