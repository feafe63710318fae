"""Means over runs of neighbouring tokens, such as the turns of a conversation."""

import torch
from torch import Tensor

from .sums import accumulator


def run_mean(x: Tensor, starts: Tensor) -> Tensor:
    """``[N] -> [N]``: give each token the mean of its run; ``starts`` says where a run begins, and the first token always must."""
    run = starts.cumsum(0) - 1
    wide = x.new_zeros(x.shape, dtype=accumulator(x))  # no more runs than tokens: a shape that no data decides
    total = wide.index_add(0, run, x.to(wide.dtype))
    count = wide.index_add(0, run, torch.ones_like(wide)).clamp(min=1)
    return (total / count).to(x.dtype).index_select(0, run)
