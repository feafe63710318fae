"""Quantiles of packed tokens, over all of them or within each sequence: by sorting, so that no shape follows from data."""

import torch
from torch import Tensor


def segment_quantile(x: Tensor, q: float, index: Tensor, lengths: Tensor, offsets: Tensor) -> Tensor:
    """``[N] -> [S]``: the ``q``-quantile of each sequence, interpolated between neighbours; what an empty one gets means nothing.

    ``index [N]`` gives each token's sequence, ``lengths`` and ``offsets`` are ``[S]``. No gradient.
    """
    if x.shape[0] == 0:
        return x.new_zeros(lengths.shape[0])
    x = x.detach()
    by_value = x.argsort(stable=True)
    ordered = x.index_select(0, by_value.index_select(0, index.index_select(0, by_value).argsort(stable=True)))
    place = q * (lengths - 1).clamp(min=0).to(torch.float64 if x.device.type != "mps" else torch.float32)
    below = place.floor()
    low, high = (ordered.index_select(0, (offsets + p.long()).clamp(max=x.shape[0] - 1)) for p in (below, place.ceil()))
    return torch.lerp(low, high, (place - below).to(x.dtype))


def quantile(x: Tensor, q: float) -> Tensor:
    """``[N] -> []``: the ``q``-quantile of all tokens, of any number of them; of none it means nothing."""
    none = torch.zeros_like(x, dtype=torch.long)
    count = torch.full((1,), x.shape[0], dtype=torch.long, device=x.device)
    return segment_quantile(x, q, none, count, torch.zeros_like(count))[0]
