"""What the estimators that read ``component_rewards`` share: one weight per component."""

from typing import Annotated

from pydantic import Field

from ...registry import ColumnError

Weight = Annotated[float, Field(allow_inf_nan=False)]
Weights = Annotated[tuple[Weight, ...] | None, Field(description="one weight per component; null: all 1")]


def shares(who: str, weights: tuple[float, ...] | None, count: int) -> tuple[float, ...]:
    """Return one weight per component; another number of them raises ``ColumnError``."""
    found = (1.0,) * count if weights is None else weights
    if len(found) != count:
        raise ColumnError(f"{who} has {len(found)} weights, but 'component_rewards' has {count} components.")
    return found
