"""Types of hyperparameters that recur: a name for the bound, so that a signature reads as its own documentation."""

from typing import Annotated

from pydantic import Field

ClipRange = Annotated[float, Field(ge=0, lt=1e3, description="how far a ratio may move from 1 before it stops paying")]
ClipBelow = Annotated[float, Field(ge=0, le=1, description="how far a ratio may fall below 1 before it stops paying")]
LogRatioBound = Annotated[
    float | None, Field(gt=0, le=80, description="log-ratios are clamped to +- this before exp; null: only where exp would overflow")
]
Real = Annotated[float, Field(allow_inf_nan=False)]
"""Any number: said where no bound would make sense."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Discount = Annotated[float, Field(ge=0, le=1, description="decay per sampled token")]
Count = Annotated[int, Field(gt=0, le=2**53)]
Epsilon = Annotated[NonNegative, "added to the deviation that divides"]
