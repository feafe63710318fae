"""Where sequences and groups lie in a flat row of tokens, and the sums between the levels."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree

from ..numerics import accumulator, safe_divide, scan
from ..registry import ColumnError
from .ranks import ONE_RANK, Ranks


@dataclass(frozen=True)
class Sequences:
    """The ladder token -> sequence -> group of one packed batch.

    Tokens of one sequence lie side by side. All methods are differentiable, none waits for the device, and every shape follows from
    shapes. ``[N]`` tokens, ``[S]`` sequences, ``[G]`` groups. Group sums reach over ``ranks`` (inside ``estimate`` and ``weigh``),
    everything else stays on this rank.
    """

    lengths: Tensor
    """``[S]``: tokens of each sequence; 0 is allowed."""
    offsets: Tensor
    """``[S]``: where each sequence begins."""
    index: Tensor
    """``[N]``: the sequence of each token."""
    groups: Tensor | None = None
    """``[S]``: the group of each sequence, counted from 0; None: the batch has no ``group_ids``."""
    slots: Tensor | None = None
    """``[G]``: the ids of the groups. Its shape says how many slots group sums have; over ranks some slots stay empty."""
    ranks: Ranks = field(default=ONE_RANK, compare=False)

    @classmethod
    def of(cls, lengths: Tensor, total: int, group_ids: Tensor | None = None, slots: int | None = None) -> "Sequences":
        """Build from lengths whose sum the host knows; ``slots`` is the number of distinct ``group_ids``, if known."""
        index = torch.repeat_interleave(torch.arange(lengths.shape[0], device=lengths.device), lengths, output_size=total)
        groups, ids = (None, None) if group_ids is None else _slots(group_ids, group_ids, slots)
        return cls(lengths, lengths.cumsum(0) - lengths, index, groups, ids)

    # ── token <-> sequence ───────────────────────────────────────────────────────────────────────────────────────────

    def sum(self, x: Tensor) -> Tensor:
        """``[N] -> [S]``: sum over each sequence, kept in float64 on the way; of booleans: how many hold."""
        wide = x.new_zeros((self.lengths.shape[0], *x.shape[1:]), dtype=accumulator(x))
        return wide.index_add(0, self.index, x.to(wide.dtype)).to(torch.long if x.dtype == torch.bool else x.dtype)

    def mean(self, x: Tensor) -> Tensor:
        """``[N] -> [S]``: mean over each sequence; an empty sequence gives 0 (and no gradient)."""
        total = self.sum(x)
        count = self.lengths.clamp(min=1).to(total.dtype)
        return total / count.view(-1, *[1] * (total.dim() - 1))

    def max(self, x: Tensor) -> Tensor:
        """``[N] -> [S]``: maximum over each sequence; an empty sequence gives ``-inf``."""
        floor = x.new_full((self.lengths.shape[0],), float("-inf"))
        return floor.scatter_reduce(0, self.index, x, "amax", include_self=True)

    def spread(self, x: Tensor) -> Tensor:
        """``[S] -> [N]``: give each token its sequence's value."""
        return x.index_select(0, self.index)

    # ── along a sequence ─────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def places(self) -> Tensor:
        """``[N]``: each token's place among the sampled tokens of its sequence, from 0."""
        return torch.arange(self.index.shape[0], device=self.index.device) - self.spread(self.offsets)

    @property
    def is_last(self) -> Tensor:
        """``[N]``: whether a token is the last of its sequence."""
        return self.places == self.spread(self.lengths) - 1

    def next(self, x: Tensor, last: Tensor | float = 0.0) -> Tensor:
        """``[N] -> [N]``: the following token's value; the last token of a sequence gets ``last`` (a number or ``[S]``)."""
        after = self.spread(last) if isinstance(last, Tensor) else last
        return torch.where(self.is_last, after, x.roll(-1, 0))

    def place_last(self, x: Tensor) -> Tensor:
        """``[S] -> [N]``: each sequence's value on its last token and 0 elsewhere; an empty sequence has nowhere to put it."""
        return torch.where(self.is_last, self.spread(x), 0.0)

    def reverse_scan(self, x: Tensor, decay: float | Tensor = 1.0) -> Tensor:
        """``[N] -> [N]``: ``y_t = x_t + decay * y_(t+1)`` within each sequence; ``decay`` may be one factor per token."""
        return scan(x, decay, self.index, self.lengths, self.offsets, reverse=True)

    def cumsum(self, x: Tensor) -> Tensor:
        """``[N] -> [N]``: running sum within each sequence, the token itself included."""
        return scan(x, 1.0, self.index, self.lengths, self.offsets, reverse=False)

    # ── sequence <-> group ───────────────────────────────────────────────────────────────────────────────────────────

    def group_sum(self, x: Tensor) -> Tensor:
        """``[S] -> [G]``: sum over each group, on whatever rank its sequences lie."""
        groups, slots = self._grouped()
        wide = x.new_zeros(slots.shape[0], dtype=accumulator(x)).index_add(0, groups, x.to(accumulator(x)))
        return self.ranks.sum(wide).to(x.dtype)

    def group_size(self) -> Tensor:
        """``[G]``: how many sequences each group has, empty sequences included (float64)."""
        return self.group_sum(torch.ones_like(self.lengths, dtype=accumulator(self.lengths)))

    def group_mean(self, x: Tensor) -> Tensor:
        """``[S] -> [G]``: mean over each group."""
        size = self.group_size().to(x.dtype)
        return safe_divide(self.group_sum(x), size)

    def group_std(self, x: Tensor, *, unbiased: bool = True) -> Tensor:
        """``[S] -> [G]``: standard deviation over each group, from centred values; a group of one gives 0."""
        centred = x - self.group_spread(self.group_mean(x))
        freedom = self.group_size().to(x.dtype) - (1 if unbiased else 0)
        variance = safe_divide(self.group_sum(centred * centred), freedom.clamp(min=0))
        spread = variance > 0  # the root has no slope at 0: equal values get the gradient 0, not NaN
        return torch.where(spread, torch.where(spread, variance, 1.0).sqrt(), 0.0)

    def group_max(self, x: Tensor) -> Tensor:
        """``[S] -> [G]``: maximum over each group; an unused slot gives ``-inf``."""
        groups, slots = self._grouped()
        floor = x.new_full(slots.shape, float("-inf"))
        return self.ranks.max(floor.scatter_reduce(0, groups, x, "amax", include_self=True))

    def group_spread(self, x: Tensor) -> Tensor:
        """``[G] -> [S]``: give each sequence its group's value."""
        return x.index_select(0, self._grouped()[0])

    def _grouped(self) -> tuple[Tensor, Tensor]:
        if self.groups is None or self.slots is None:
            raise ColumnError("this needs to know which sequences answer the same prompt, but the batch has no 'group_ids'.")
        return self.groups, self.slots

    # ── the whole step ───────────────────────────────────────────────────────────────────────────────────────────────

    def moments(self, x: Tensor, *, unbiased: bool = True) -> tuple[Tensor, Tensor, Tensor]:
        """Return ``(count, mean, variance)`` of ``x`` over all ranks, in float64; fewer than two values have variance 0."""
        wide = x.to(accumulator(x))
        count, total = self.ranks.sum(torch.stack([wide.new_full((), x.shape[0]), wide.sum()])).unbind()
        mean = safe_divide(total, count)
        spread = self.ranks.sum(((wide - mean) ** 2).sum())
        return count, mean, safe_divide(spread, (count - (1 if unbiased else 0)).clamp(min=0))

    def across(self, ranks: Ranks) -> "Sequences":
        """Return the same sequences with group sums over ``ranks``: groups get slots that all ranks agree on."""
        if ranks is ONE_RANK:
            return self
        groups, slots = self.groups, self.slots
        if groups is not None and slots is not None:
            mine = slots.index_select(0, groups)
            groups, slots = _slots(mine, ranks.gather(mine), None)
        return Sequences(self.lengths, self.offsets, self.index, groups, slots, ranks)


def _slots(ids: Tensor, everyone: Tensor, count: int | None) -> tuple[Tensor, Tensor]:
    """Return ``(slot of each id, id of each slot)``; without ``count`` there are as many slots as ids, some of them unused."""
    ordered = everyone.sort().values
    if count is not None and count != ordered.shape[0]:
        first = torch.cat([ordered.new_ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
        ordered = ordered.index_select(0, torch.nonzero_static(first, size=count).squeeze(1))  # unique would wait for the device
    return torch.searchsorted(ordered, ids.contiguous()), ordered


def _flatten(s: Sequences) -> tuple[list[Tensor | None], Ranks]:
    return [s.lengths, s.offsets, s.index, s.groups, s.slots], s.ranks


def _unflatten(parts: Iterable[Any], ranks: Any) -> Sequences:
    lengths, offsets, index, groups, slots = parts
    return Sequences(lengths, offsets, index, groups, slots, ranks)


_pytree.register_pytree_node(Sequences, _flatten, _unflatten, serialized_type_name="lossary.Sequences")
