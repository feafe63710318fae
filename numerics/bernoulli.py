"""Divergences between two policies as one token shows them: sampled or not."""

from torch import Tensor


def probability_shift(log_prob: Tensor, other: Tensor) -> Tensor:
    """Return ``exp(log_prob) - exp(other)``, between -1 and 1: its size is the binary total variation. No gradient."""
    return log_prob.detach().exp() - other.exp()


def binary_kl(other: Tensor, log_prob: Tensor) -> Tensor:
    """Return KL [nats] of the coin that shows this token with ``exp(other)`` from the one with ``exp(log_prob)``.

    Both chances of the reverse side are kept 1e-8 above 0, as verl does. A gradient flows through ``other`` alone.
    A log-probability above 0 counts as 0.
    """
    other, new = other.clamp(max=0), log_prob.detach().clamp(max=0)
    rest, new_rest = -other.expm1(), -new.expm1()  # 1 - exp(x) would round away what likely tokens leave to the others
    return other.exp() * (other - new) + rest * ((rest + 1e-8) / (new_rest + 1e-8)).log()
