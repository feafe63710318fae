"""Rewards in another unit."""

from typing import Annotated

from pydantic import Field

from ...registry import PerSequence, reward_term

Bias = Annotated[float, Field(allow_inf_nan=False, description="what is added to the reward first")]
Scaling = Annotated[float, Field(allow_inf_nan=False, description="what the sum is multiplied by")]


@reward_term(
    scope="token",
    compat={"areal": "use `scale-rewards` with its bias and scaling, then `clip-rewards: {reward_clip_range: [-20, 20]}`."},
)
def scale_rewards(rewards: PerSequence, *, reward_bias: Bias = 0.0, reward_scaling: Scaling = 1.0) -> PerSequence:
    r"""Shift the rewards, then multiply them; ``map-rewards`` says the same by two ranges and cuts off at their ends.

    .. math:: s'_i = (s_i + b) \cdot c

    ``[S]``, in units of the reward times ``reward_scaling``. Estimators that divide by a deviation do not notice.
    """
    return (rewards + reward_bias) * reward_scaling
