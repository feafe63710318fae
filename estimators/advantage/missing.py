"""What the estimators over components share: a reward function that does not apply to a sequence gave NaN, which counts nowhere."""

from dataclasses import replace

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator, safe_divide


def among(present: Tensor, sequences: Sequences) -> Sequences:
    """Return the same sequences with those where ``present [S]`` does not hold taken out of their groups, over all ranks."""
    group = sequences.group_spread(torch.arange(sequences.group_size().shape[0], device=present.device))
    key = torch.where(present, group, -1)  # the absent share a group of their own
    flat = Sequences.of(torch.ones_like(key), key.shape[0], key).across(sequences.ranks)
    return replace(sequences, groups=flat.groups, slots=flat.slots)


def present_moments(x: Tensor, present: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Return ``(mean, unbiased variance)`` of ``x`` where ``present`` holds, over all ranks: ``Sequences.moments`` of a part."""
    wide = x.to(accumulator(x))
    count, total = sequences.ranks.sum(torch.stack([present.sum().to(wide.dtype), torch.where(present, wide, 0.0).sum()])).unbind()
    mean = safe_divide(total, count)
    spread = sequences.ranks.sum(torch.where(present, (wide - mean).square(), 0.0).sum())
    return mean, safe_divide(spread, (count - 1).clamp(min=0))
