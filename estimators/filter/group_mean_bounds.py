"""Groups that are neither too easy nor too hard."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import PerSequence, sequence_filter
from ..reward.ranges import Range


@sequence_filter(
    aliases=("dynamic_filtering", "difficulty_mask"),
    scope="group",
    compat={
        "openrlhf": "use `group-mean-bounds` for dynamic_filtering; its default bounds are 0 and 1, both excluded; it also samples anew.",
        "roll": "use `group-mean-bounds: {reward_range: [0.1, 0.95]}` for its difficulty mask.",
        "torchrl": "use `group-mean-bounds` with its keep_return_bounds.",
    },
)
def group_mean_bounds(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    reward_range: Annotated[Range, "the two mean rewards strictly between which a group stays"] = (0.0, 1.0),
) -> PerSequence:
    r"""Keep the groups whose mean reward lies strictly between two bounds; ``group-spread`` asks whether their rewards differ instead.

    .. math:: a < \operatorname{mean}_g s < b

    ``[S]`` bool; the bounds are in units of the reward. Empty sequences count in the mean. For rewards of 0 and 1 the default drops
    the same groups as ``group-spread``, and every sequence that is alone in its group besides. A batch without ``group_ids`` raises
    ``ColumnError``.
    """
    mean = sequences.group_spread(sequences.group_mean(rewards.to(accumulator(rewards))))
    return (mean > reward_range[0]) & (mean < reward_range[1])
