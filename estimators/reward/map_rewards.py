"""Rewards from one range laid upon another."""

from typing import Annotated

from ...registry import PerSequence, reward_term
from .ranges import Range


@reward_term(
    aliases=("reward_scaling",),
    scope="token",
    compat={"nemo-rl": "use `map-rewards` with the source and target ranges of its reward scaling; both clamp to the source range."},
)
def map_rewards(
    rewards: PerSequence,
    *,
    source: Annotated[Range, "the range before; what lies outside counts as its nearer end"] = (0.0, 1.0),
    target: Annotated[Range, "the range after"] = (0.0, 1.0),
) -> PerSequence:
    r"""Map one range linearly upon another and cut off what lies outside; ``scale-rewards`` is the line without ends.

    .. math:: s'_i = c + \frac{\operatorname{clip}(s_i,\, a,\, b) - a}{b - a}\,(d - c)

    ``[S]``; ``source`` is :math:`[a, b]` and ``target`` :math:`[c, d]`, in the units before and after.
    """
    (a, b), (c, d) = source, target
    return c + (rewards.clamp(a, b) - a) / (b - a) * (d - c)
