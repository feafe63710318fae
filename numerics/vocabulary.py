"""What a distribution over the whole vocabulary is worth, and how it moves, in closed form.

All take logits ``[n, V]`` [nats] and work in float32 at least. For the backward pass they keep one tensor of that size and not the steps
that led to it: the gradient itself, which is known. A logit of ``-inf`` is a token that cannot be said: it counts for nothing and gets
the gradient 0.
"""

from typing import Any

import torch
from torch import Tensor


def log_prob_of(logits: Tensor, ids: Tensor, temperature: float = 1.0) -> Tensor:
    """``[n, V], [n] or [n, K] -> [n] or [n, K]``: log-probabilities [nats] of given tokens."""
    z = widened(logits, temperature)
    chosen = ids.long() if ids.dim() == z.dim() else ids.long().unsqueeze(-1)
    return (z.gather(-1, chosen) - z.logsumexp(-1, keepdim=True)).reshape(ids.shape)


def entropy_of(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""``[n, V] -> [n]``: :math:`H = -\sum_v p_v \log p_v` [nats], whose slope is :math:`-p_v (\log p_v + H)`."""
    log_p = log_softmax(logits, temperature)
    p = log_p.exp()
    surprise = log_p.mul_(p).neg_().masked_fill_(p == 0, 0.0)
    return through_softmax(logits, surprise.sum(-1), p, surprise, temperature)


def sum_pi_squared_of(logits: Tensor, temperature: float = 1.0) -> Tensor:
    r"""``[n, V] -> [n]``: :math:`\sum_v p_v^2`, the chance that two draws agree."""
    p = log_softmax(logits, temperature).exp_()
    squares = p.square()
    return through_softmax(logits, squares.sum(-1), p, squares.mul_(2), temperature)


def widened(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Return logits over the temperature, in float32 at least."""
    exact = logits if logits.dtype == torch.float64 else logits.float()
    return exact if temperature == 1 else exact / temperature


def log_softmax(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """``[n, V] -> [n, V]``: log-probabilities of all tokens without a gradient: a tensor of its own that may be written over."""
    with torch.no_grad():
        return widened(logits, temperature).log_softmax(-1)


def through_softmax(logits: Tensor, value: Tensor, p: Tensor, pull: Tensor, temperature: float = 1.0) -> Tensor:
    r"""Return ``value [n]`` with its gradient as a function of ``logits``, given :math:`pull_v = p_v\, \partial value / \partial p_v`.

    Through the softmax, :math:`\partial value / \partial z_v = (pull_v - p_v \sum_u pull_u) / T`, so that what all
    :math:`\partial value / \partial p_v` share cancels and may be left out. Writes over ``pull``. Once differentiable.
    """
    if not (torch.is_grad_enabled() and logits.requires_grad):
        return value
    slope = pull.addcmul_(p, pull.sum(-1, keepdim=True), value=-1.0)
    found: Tensor = _Known.apply(logits, value, slope if temperature == 1 else slope.div_(temperature))  # type: ignore[no-untyped-call]
    return found


class _Known(torch.autograd.Function):
    """A number per row whose gradient was found with it."""

    @staticmethod
    def forward(logits: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        """Return the number; the logits are there to be differentiated."""
        return value.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        """Keep the gradient and nothing else."""
        logits, _, slope = inputs
        ctx.save_for_backward(slope)
        ctx.dtype = logits.dtype

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        """Scale the gradient."""
        (slope,) = ctx.saved_tensors
        return (grad.unsqueeze(-1) * slope).to(ctx.dtype), None, None
