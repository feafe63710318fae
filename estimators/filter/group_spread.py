"""Groups from which nothing can be learned: all answers earned the same."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import PerSequence, sequence_filter
from ...registry.hyper import NonNegative
from ..advantage.groups import rounding
from ..advantage.standings import standings

Tolerance = Annotated[NonNegative, Field(description="a group stays if its rewards lie further apart than this")]
Alone = Annotated[Literal["keep", "drop"], Field(description="what becomes of a group with a single sequence")]


@sequence_filter(
    aliases=("filter_groups", "zero_variance_filter", "dynamic_sampling"),
    paper="arXiv:2503.14476",
    scope="group",
    compat={
        "verl": "use `group-spread: {by: std, tolerance: 0}` for filter_groups on the reward; a group of one stays; it also samples anew.",
        "skyrl": "use `group-spread` for zero_variance_filter, with its tol as `tolerance`; sequences without a token do not count.",
        "slime": "use `group-spread: {by: std}`; a group stays if its deviation is above 1e-6.",
        "nemo-rl": "use `group-spread: {by: std, tolerance: 0, singleton: drop}`; with its leave-one-out deviation it also drops groups of two.",
        "trl": "counts such groups in its log but keeps them: leave the section out.",
    },
)
def group_spread(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    by: Annotated[Literal["range", "std"], "how spread is measured: highest less lowest reward, or unbiased deviation"] = "range",
    tolerance: Tolerance = 1e-6,
    singleton: Alone = "keep",
) -> PerSequence:
    r"""Keep the groups whose rewards differ by more than a tolerance; ``group-mean-bounds`` asks how hard they found it instead.

    .. math:: \max_g s - \min_g s > \tau \qquad\text{or}\qquad \operatorname{std}_g s > \tau

    ``[S]`` bool; :math:`\tau` is in units of the reward and the deviation is the unbiased one. Sequences without a sampled token do not
    count, and go or stay with their group. A group with one that counts has no spread, and ``singleton`` decides. What is only the
    rounding of the rewards is no spread, whatever the tolerance. A batch without ``group_ids`` raises ``ColumnError``.
    """
    live = sequences.lengths > 0
    exact = rewards.to(accumulator(rewards))
    count = sequences.group_sum(live.to(exact.dtype))
    mean = sequences.group_spread(safe_divide(sequences.group_sum(torch.where(live, exact, 0.0)), count))
    apart = torch.where(live, exact - mean, 0.0)  # the mean lies between the lowest and the highest: it moves neither
    deviation = sequences.group_spread(safe_divide(sequences.group_sum(apart.square()), (count - 1).clamp(min=0))).sqrt()
    spread = deviation
    if by == "range":
        table = standings(apart, sequences)
        spread = table.highest(sequences) - table.lowest(sequences)
    apart_at_all = (spread > tolerance) & (deviation > rounding(rewards, sequences))
    return torch.where(sequences.group_spread(count) > 1, apart_at_all, singleton == "keep")
