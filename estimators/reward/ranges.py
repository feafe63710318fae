"""What the reward terms with bounds share: a pair of numbers in order."""

from typing import Annotated

from pydantic import AfterValidator, Field

Bound = Annotated[float, Field(allow_inf_nan=False)]


def _in_order(pair: tuple[float, float]) -> tuple[float, float]:
    if not pair[0] < pair[1]:
        raise ValueError(f"the first of {list(pair)} must be below the second")
    return pair


Range = Annotated[tuple[Bound, Bound], AfterValidator(_in_order)]
"""``[low, high]`` with low < high."""
