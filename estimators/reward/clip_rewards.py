"""Rewards within bounds: no judge pays or punishes more than so much."""

from typing import Annotated

from ...registry import PerSequence, reward_term
from .ranges import Range


@reward_term(
    aliases=("reward_clip",),
    scope="token",
    compat={
        "openrlhf": "use `clip-rewards` after what it should see; OpenRLHF clips after the baseline is subtracted, to +-10 by default.",
        "areal": "use `clip-rewards: {reward_clip_range: [-20, 20]}` after `scale-rewards`.",
        "trl": "use `clip-rewards` with the reward_clip_range of its RLOO trainer.",
    },
)
def clip_rewards(
    rewards: PerSequence, *, reward_clip_range: Annotated[Range, "the lowest and the highest reward that are left"] = (-10.0, 10.0)
) -> PerSequence:
    r"""Cut the rewards off at two bounds; unlike ``clip-advantages`` before anybody compares them.

    .. math:: s'_i = \operatorname{clip}(s_i,\, a,\, b)

    ``[S]``, in units of the reward, like both bounds. It sees the total of the sequence, with what was paid on its tokens.
    """
    return rewards.clamp(*reward_clip_range)
