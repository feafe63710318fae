"""What the normalisers with a memory share: moments that grow step by step."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import safe_divide
from .groups import rounding_of

Moments = Mapping[str, Tensor]


def no_moments() -> Moments:
    """Return the moments of nothing: 0-d float64 ``count``, ``mean`` and ``square`` (the sum of squared distances from the mean)."""
    return {name: torch.zeros((), dtype=torch.float64) for name in ("count", "mean", "square")}


def grown(state: Moments, x: Tensor, sequences: Sequences, decay: float) -> Moments:
    """Return the moments of all that was seen, ``x`` on all ranks included; ``decay`` is what the past counts beside it."""
    count, mean, variance = sequences.moments(x, unbiased=False)
    old = {name: value.to(count) for name, value in state.items()}
    before = old["count"] * decay
    total = before + count
    apart = mean - old["mean"]
    square = old["square"] * decay + variance * count + safe_divide(apart.square() * before * count, total)
    return {"count": total, "mean": old["mean"] + safe_divide(apart * count, total), "square": square}


def normalised(x: Tensor, moments: Moments, epsilon: float, shift_mean: bool) -> Tensor:
    """Return ``x`` in units of the unbiased deviation of ``moments``, with or without their mean; no deviation but rounding gives 0."""
    deviation = safe_divide(moments["square"], (moments["count"] - 1).clamp(min=0)).sqrt()
    tied = deviation <= rounding_of(moments["mean"].square() + safe_divide(moments["square"], moments["count"]), x.dtype)
    apart = x.to(deviation.dtype) - (moments["mean"] if shift_mean else 0.0)
    return safe_divide(torch.where(tied, 0.0, apart), deviation + epsilon).to(x.dtype)
