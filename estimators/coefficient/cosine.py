"""A coefficient that rises, and then sinks along half a cosine."""

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...numerics import accumulator
from ...registry import coefficient
from ...registry.hyper import Count, Real


@coefficient(deviates={"referenced": "A plain schedule that needs no source."})
def cosine(
    step: Tensor,
    *,
    start: Annotated[Real, "the coefficient when the warm-up is over"],
    end: Annotated[Real, "the coefficient once all steps are over"],
    steps: Annotated[Count, "how many steps after the warm-up lead from one to the other"],
    warmup_steps: Annotated[int, Field(ge=0, description="steps in which it rises from 0 to start, before the others")] = 0,
) -> Tensor:
    r"""Return ``start`` after the warm-up, ``end`` from ``steps`` later on, and half a cosine between: ``linear`` with soft ends.

    .. math:: c = end + (start - end) \cdot \tfrac12 \bigl(1 + \cos(\pi \cdot \min((step - warmup\_steps) / steps,\, 1))\bigr)

    0-d float64. In the warm-up it is :math:`start \cdot step / warmup\_steps`, on a straight line from 0.
    """
    now = step.to(accumulator(step))
    progress = ((now - warmup_steps) / steps).clamp(0.0, 1.0)
    risen = start * now / max(warmup_steps, 1)
    return torch.where(now < warmup_steps, risen, end + (start - end) * 0.5 * (1 + (math.pi * progress).cos()))
