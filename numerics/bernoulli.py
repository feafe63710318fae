"""Divergences between two policies as one token shows them: sampled or not."""

from torch import Tensor


def probability_shift(log_prob: Tensor, other: Tensor) -> Tensor:
    """Return ``exp(log_prob) - exp(other)``, between -1 and 1: its size is the binary total variation. No gradient."""
    return log_prob.detach().exp() - other.exp()


def binary_kl(other: Tensor, log_prob: Tensor) -> Tensor:
    """Return KL [nats] of the coin that shows this token with ``exp(other)`` from the one with ``exp(log_prob)``. No gradient.

    Both chances of the reverse side are kept 1e-8 above 0, as verl does.
    """
    new = log_prob.detach()
    p, q = new.exp(), other.exp()
    return q * (other - new) + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
