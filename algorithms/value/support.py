"""The support of a critic of bins: which returns it can stand for."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from ...registry import Strict

Low = Annotated[float, Field(allow_inf_nan=False, description="the smallest return that the critic can stand for")]
High = Annotated[float, Field(allow_inf_nan=False, description="the largest return that the critic can stand for")]
SigmaRatio = Annotated[float, Field(ge=0.01, le=100, description="deviation of the target in bins")]


_FLOAT32 = 2.0**-23
_LARGEST, _NARROWEST = 1e30, 1e-30
_STEPS = 1024
"""How many numbers of float32 must lie between the ends: fewer cannot be told apart as bins."""


class Support(Strict):
    """``low`` below ``high``, with room in float32 for bins between them."""

    low: Low = -1.0
    high: High = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; low must be below high")
        size = max(abs(self.low), abs(self.high))
        if size > _LARGEST:
            raise ValueError(f"low is {self.low!r} and high {self.high!r}; bins that wide overflow float32, so stay within +-{_LARGEST:g}")
        narrowest = max(_STEPS * _FLOAT32 * size, _NARROWEST)
        if self.high - self.low < narrowest:
            raise ValueError(
                f"low is {self.low!r} and high {self.high!r}, {self.high - self.low:.3g} apart; at these numbers float32 cannot tell bins "
                f"within less than {narrowest:.3g} apart"
            )
        return self


class SmoothedSupport(Support):
    """A support whose targets are smeared out."""

    sigma_ratio: SigmaRatio = 0.75
