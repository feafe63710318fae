"""Normalisation over the tokens of a group, or with the mean from one level and the deviation from another."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Epsilon
from .groups import rounding_of

Over = Literal["group", "batch", "none"]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant"),
    aliases=("group_normalize",),
    scope="step",
    compat={
        "areal": "adv_norm: mean_level, std_level, mean_leave1out and std_unbiased as there, eps is epsilon.",
    },
)
def group_normalise(
    advantages: PerToken,
    sequences: Sequences,
    *,
    mean_level: Annotated[Over, "whose mean is subtracted: the group's, the step's, or none"] = "group",
    std_level: Annotated[Over, "whose deviation divides: the group's, the step's, or none"] = "group",
    mean_leave1out: Annotated[bool, "whether a token is left out of its own mean"] = False,
    std_unbiased: Annotated[bool, "whether the variance divides by one less than the count"] = True,
    epsilon: Epsilon = 1e-5,
) -> PerToken:
    r"""Give the advantages of each *group* mean 0 and variance 1 over its tokens, where ``whiten`` does so over the step (AReaL's norm).

    .. math:: A'_t = \frac{A_t - \mu}{\sigma + \epsilon}

    ``[N]``, without unit (``std_level: none``: in units of the advantage). ``mean_leave1out`` leaves the token itself out of the mean,
    not its sequence. The deviation is that of what is left, around 0. Where a level has a single token its mean left out is 0 and its
    unbiased deviation 1. A deviation that is only rounding gives 0. Group levels without ``group_ids`` raise ``ColumnError``.
    """
    wide = advantages.to(accumulator(advantages))
    apart = wide
    if mean_level != "none":
        count, total = _sums(wide, mean_level, sequences)
        mean = safe_divide(total, count)
        if mean_leave1out:
            mean = safe_divide(torch.where(count > 1, total - wide, 0.0), count - 1)
        apart = wide - mean
    if std_level == "none":
        return apart.to(advantages.dtype)
    count, square = _sums(apart.square(), std_level, sequences)
    freedom = count - 1 if std_unbiased else count
    deviation = torch.where(freedom > 0, safe_divide(square, freedom.clamp(min=0)), 1.0).sqrt()
    tied = deviation <= rounding_of(safe_divide(_sums(wide.square(), std_level, sequences)[1], count), advantages.dtype)
    return safe_divide(torch.where(tied, 0.0, apart), deviation + epsilon).to(advantages.dtype)


def _sums(x: Tensor, level: Over, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Return ``(count, sum)`` of each token's level, ``[N]`` each, over all ranks."""
    if level == "batch":
        count, mean, _ = sequences.moments(x)
        return count.expand_as(x), (mean * count).expand_as(x)
    count, total = sequences.group_sum(sequences.lengths.to(x.dtype)), sequences.group_sum(sequences.sum(x))
    return sequences.spread(sequences.group_spread(count)), sequences.spread(sequences.group_spread(total))
