"""Discounted sums along packed sequences by blocked triangular products: no loop over time, and sequences never touch each other."""

import torch
from torch import Tensor

from .sums import accumulator

_BLOCK = 32


def scan(x: Tensor, decay: float | Tensor, index: Tensor, lengths: Tensor, offsets: Tensor, *, reverse: bool) -> Tensor:
    r"""Return :math:`y_t = x_t + decay \cdot y_{t \pm 1}` within each sequence (``+`` when ``reverse``).

    ``x``: ``[N]``; ``index [N]`` gives each token's sequence, ``lengths`` and ``offsets`` are ``[S]``. A float ``decay`` runs in
    blocks: each sequence is laid out in blocks of its own, one product with a ``[K, K]`` triangle of powers scans inside all blocks
    at once, and the blocks' carries are scanned the same way one level up. A tensor ``decay [N]`` (one factor per token) runs by
    doubling. Work and shapes follow from ``N`` and ``S`` alone, so nothing waits for the device. Sums are kept in float64, which also
    keeps TF32 out.
    """
    if x.shape[0] == 0:
        return x.clone()
    exact = x.to(accumulator(x))
    if isinstance(decay, Tensor):
        return _doubling(exact, decay.to(exact), index, lengths, offsets, reverse).to(x.dtype)
    return _blocked(exact, decay, index, lengths, offsets, reverse, x.shape[0]).to(x.dtype)


def _blocked(x: Tensor, decay: float, index: Tensor, lengths: Tensor, offsets: Tensor, reverse: bool, longest: int) -> Tensor:
    """Scan with at most ``longest`` steps that count: the bound, known from shapes, at which the recursion ends."""
    n, s, k = x.shape[0], lengths.shape[0], _BLOCK
    blocks = (lengths + (k - 1)) // k
    first = blocks.cumsum(0) - blocks
    rows = n // k + s  # no more blocks than this can be needed: a shape that no data decides
    place = torch.arange(n, device=x.device) - offsets.index_select(0, index)
    block = first.index_select(0, index) + place // k
    slot = block * k + place % k
    laid = x.new_zeros(rows * k).index_copy(0, slot, x).view(rows, k)
    steps = torch.arange(k, device=x.device)
    power = (steps[:, None] - steps[None, :]) if reverse else (steps[None, :] - steps[:, None])
    base = torch.full((), decay, dtype=x.dtype, device=x.device)
    inside = laid @ torch.where(power >= 0, base ** power.clamp(min=0), 0.0)
    if longest > k:
        inside = inside + _carried(inside, decay, base, first, blocks, reverse, -(-longest // k))
    return inside.view(-1).index_select(0, slot)


def _carried(inside: Tensor, decay: float, base: Tensor, first: Tensor, blocks: Tensor, reverse: bool, longest: int) -> Tensor:
    """Return what each block receives from the blocks of its sequence that come before it in scan order: one level up."""
    rows, k = inside.shape
    order = torch.arange(rows, device=inside.device)
    last = first + blocks
    owner = torch.searchsorted(last, order, right=True).clamp(max=first.shape[0] - 1)
    spare = order >= last[-1]  # rows that no sequence needed: they hold zeros and pass as more of the last sequence
    stretched = torch.cat([blocks[:-1], (rows - first[-1]).reshape(1)])
    ends = torch.where(spare, 0.0, inside[:, 0] if reverse else inside[:, -1])
    up = _blocked(ends, decay**k, owner, stretched, first, reverse, longest)
    neighbour = order + 1 if reverse else order - 1
    legal = (neighbour >= first.index_select(0, owner)) & (neighbour < last.index_select(0, owner)) & ~spare
    carry = torch.where(legal, up.index_select(0, neighbour.clamp(0, rows - 1)), 0.0)
    reach = torch.arange(k, 0, -1, device=order.device) if reverse else torch.arange(1, k + 1, device=order.device)
    return carry[:, None] * (base**reach)[None, :]


def _doubling(x: Tensor, decay: Tensor, index: Tensor, lengths: Tensor, offsets: Tensor, reverse: bool) -> Tensor:
    n = x.shape[0]
    place = torch.arange(n, device=x.device) - offsets.index_select(0, index)
    border = place == (lengths.index_select(0, index) - 1 if reverse else 0)
    factor = torch.where(border, 0.0, decay)
    x, factor, index = (x, factor, index) if reverse else (x.flip(0), factor.flip(0), index.flip(0))
    step = 1
    while step < n:  # log2(N) passes, not N
        # The factor across a border is 0 already, but 0 * inf is NaN: what a neighbour holds is not even multiplied.
        same = index[:-step] == index[step:]
        reached = torch.where(same, factor[:-step], 0.0) * torch.where(same, x[step:], 0.0)
        x = torch.cat([x[:-step] + reached, x[-step:]])
        factor = torch.cat([factor[:-step] * factor[step:], torch.zeros_like(factor[-step:])])
        step *= 2
    return x if reverse else x.flip(0)
