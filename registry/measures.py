"""What a component may report beside its result: extensive quantities, so that every average is exact over splits and ranks."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Mean:
    """The mean of ``x`` over the elements where ``where`` holds, over all micro-batches and ranks. A bare tensor means this."""

    x: Tensor
    where: Tensor | None = None


@dataclass(frozen=True)
class Max:
    """The largest ``x``."""

    x: Tensor
    where: Tensor | None = None


@dataclass(frozen=True)
class Min:
    """The smallest ``x``."""

    x: Tensor
    where: Tensor | None = None


Report = Mapping[str, Mean | Max | Min | Tensor]
"""``{name: Mean(x) | Max(x) | Min(x)}``."""


@dataclass(frozen=True)
class Measured:
    """What a coefficient learns of the last committed step, reduced over ranks: 0-d tensors, all 0 before the first step."""

    token_mean: Tensor
    """Mean over tokens of the quantity that the coefficient multiplies."""
    sequence_mean: Tensor
    """Mean over sequences of their token means."""
    sequences: Tensor
    """How many sequences that was."""


@dataclass(frozen=True)
class Totals:
    """Counts over all micro-batches and ranks of one optimizer step: the denominators. 0-d float64 tensors."""

    tokens: Tensor
    sequences: Tensor
    """Sequences with a token; all of them under ``empty: count``."""
    groups: Tensor
    """Groups with a token."""
    tokens_original: Tensor
    """Tokens before any correction dropped some."""
