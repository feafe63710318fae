"""The support of a critic of bins: which returns it can stand for."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from ...registry import Strict

Low = Annotated[float, Field(allow_inf_nan=False, description="the smallest return that the critic can stand for")]
High = Annotated[float, Field(allow_inf_nan=False, description="the largest return that the critic can stand for")]
SigmaRatio = Annotated[float, Field(gt=0, le=100, description="deviation of the target in bins")]


class Support(Strict):
    """``low`` below ``high``."""

    low: Low = -1.0
    high: High = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}; low must be below high")
        return self


class SmoothedSupport(Support):
    """A support whose targets are smeared out."""

    sigma_ratio: SigmaRatio = 0.75
