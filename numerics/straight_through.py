"""One value, another gradient."""

from torch import Tensor

from .ratio import bounded, capped


def straight_through(value: Tensor, via: Tensor) -> Tensor:
    """Return a tensor that equals ``value`` exactly and has the gradient of ``via``."""
    return value.detach() + (via - via.detach())


def score_weight(log_ratio: Tensor, cap: float | None) -> Tensor:
    r"""Return :math:`w = \min(e^{\text{log_ratio}}, cap)`, whose gradient by ``log_ratio`` is ``w`` also where the cap binds.

    A ratio that is capped as a number loses its gradient there; this one goes on as a score function does. Finite in float32.
    """
    weight = capped(bounded(log_ratio.detach(), None).exp(), cap)
    return weight * (log_ratio - log_ratio.detach()).exp()
