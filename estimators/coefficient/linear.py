"""A coefficient that moves along a straight line and then stays."""

from typing import Annotated

from torch import Tensor

from ...numerics import accumulator
from ...registry import coefficient
from ...registry.hyper import Count, Real


@coefficient(deviates={"referenced": "A plain schedule that needs no source."})
def linear(
    step: Tensor,
    *,
    start: Annotated[Real, "the coefficient at step 0"],
    end: Annotated[Real, "the coefficient once all steps are over"],
    steps: Annotated[Count, "how many steps lead from one to the other"],
) -> Tensor:
    r"""Return ``start`` at step 0, ``end`` from step ``steps`` on, and the straight line between; it follows time, not the measured term.

    .. math:: c = start + (end - start) \cdot \min(step / steps,\, 1)

    0-d float64.
    """
    progress = (step.to(accumulator(step)) / steps).clamp(0.0, 1.0)
    return start + (end - start) * progress
