"""One value, another gradient."""

import torch
from torch import Tensor

from .ratio import bounded, capped


def straight_through(value: Tensor, via: Tensor) -> Tensor:
    """Return a tensor that equals ``value`` exactly and has the gradient of ``via``."""
    return value.detach() + (via - via.detach())


def sloped(value: Tensor, slope: Tensor, x: Tensor) -> Tensor:
    """Return a tensor that equals ``value`` and has the gradient ``slope`` by ``x``; an infinite ``x`` cannot be moved and gets 0."""
    movable = torch.where(x.isinf(), 0.0, x)
    return straight_through(value, slope.detach() * movable)


def score_weight(log_ratio: Tensor, cap: float | None) -> Tensor:
    r"""Return :math:`w = \min(e^{\text{log_ratio}}, cap)`, whose gradient by ``log_ratio`` is ``w`` also where the cap binds.

    A ratio that is capped as a number loses its gradient there; this one goes on as a score function does. Finite in float32; an
    infinite log-ratio has no gradient.
    """
    weight = capped(bounded(log_ratio.detach(), None).exp(), cap)
    movable = torch.where(log_ratio.isinf(), 0.0, log_ratio)
    return weight * (movable - movable.detach()).exp()
