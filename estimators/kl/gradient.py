"""What every KL estimator has in common: its bound, its cap and the choice of its gradient."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ...numerics import straight_through

Gradient = Literal["own", "straight-through"]
Cap = Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="the estimate is clamped to +- this [nats]; null: never")]


def shaped(estimate: Tensor, log_ratio: Tensor, gradient: Gradient, cap: float | None) -> Tensor:
    """Return the estimate, capped, with its own gradient (0 where the cap binds) or with that of ``k2``, which the cap leaves alone.

    ``log_ratio`` is ``log_prob - ref_log_prob`` [nats]: the gradient of ``k2``, and on policy an unbiased gradient of the KL itself.
    """
    if cap is not None:
        estimate = estimate.clamp(-cap, cap)
    return estimate if gradient == "own" else straight_through(estimate, 0.5 * log_ratio.square())
