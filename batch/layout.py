"""Where the packed tokens came from: the index that carries a padded or jagged tensor in and a column out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from ..registry import ColumnError
from .shift import left_shift_padded


@dataclass(frozen=True)
class Layout:
    """The outside shape of a batch: padded rows (``width`` columns) or sequences end to end (``width`` is None)."""

    source: Tensor
    """``[N]``: flat place of each packed token outside."""
    starts: Tensor
    """``[S]``: flat place where each row begins."""
    spans: tuple[int, ...]
    """Positions of each row, on the host."""
    width: int | None = None
    jagged: bool = False
    """The batch came from nested tensors, so ``unpack`` gives one."""
    shiftable: bool = True
    """Every token has a position before it, so that a model's output over the same positions can be shifted onto it."""

    @property
    def positions(self) -> int:
        """How many positions there are outside."""
        return sum(self.spans)

    def pack(self, x: Tensor, name: str = "the tensor", *, shift: bool = False) -> Tensor:
        """Return the packed tokens of ``x``: ``[B, T, ...]``, a jagged nested tensor, or what is packed already.

        ``shift`` says that ``x`` is a model's output over prompt and response, in which position t speaks of token t + 1.
        """
        flat = x.values() if x.is_nested else x
        if flat.dim() == 0:
            raise ColumnError(f"{name} is a single number; expected one value per token.")
        if self.width is None:
            return self._pack_flat(flat, name, shift)
        if shift:
            flat = left_shift_padded(flat, self.width)
        if flat.dim() >= 2 and tuple(flat.shape[:2]) == (len(self.spans), self.width):
            return flat.flatten(0, 1).index_select(0, self.source)
        if flat.shape[0] == self.source.shape[0] and not shift:
            return flat
        expected = f"{[len(self.spans), self.width]} (padded) or {[self.source.shape[0]]} (packed)"
        longer = flat.dim() > 1 and flat.shape[1] > self.width
        hint = f" An output over prompt and response ({flat.shape[1]} positions) is cut by pack(x, shift=True)." if longer else ""
        raise ColumnError(f"{name} has the shape {list(flat.shape)}; expected {expected}.{hint}")

    def pack_rows(self, x: Tensor, name: str = "the tensor") -> Tensor:
        """Return the packed tokens ``[N, K]`` of what has one more axis, whose length must not be taken for that of padded rows."""
        packed = x.dim() == 2 and not x.is_nested and x.shape[0] == self.source.shape[0]
        return x if packed and self.width is not None else self.pack(x, name)

    def _pack_flat(self, x: Tensor, name: str, shift: bool) -> Tensor:
        n, total = self.source.shape[0], self.positions
        if shift and not self.shiftable:
            raise ColumnError(f"{name} cannot be shifted: a sampled token stands first in its sequence, so no position speaks of it.")
        if x.shape[0] == total and (shift or total != n):
            return x.index_select(0, self.source - 1 if shift else self.source)
        if x.shape[0] == n and not shift:
            return x
        raise ColumnError(
            f"{name} has {x.shape[0]} positions; expected {total} (prompt and response){'' if shift else f' or {n} (sampled tokens)'}."
        )

    def unpack(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return the outside shape of a packed column, with ``fill`` wherever no sampled token was."""
        if x.dim() == 0 or x.shape[0] != self.source.shape[0]:
            raise ColumnError(
                f"the tensor has the shape {list(x.shape)}; expected [{self.source.shape[0]}, ...]: one value per sampled token."
            )
        flat = x.new_full((self.positions, *x.shape[1:]), fill).index_copy(0, self.source, x)
        if self.jagged:
            ends = self.starts + upload(self.spans, self.starts.device)
            return torch.nested.nested_tensor_from_jagged(flat, torch.cat([self.starts[:1], ends]))
        return flat if self.width is None else flat.view(len(self.spans), self.width, *x.shape[1:])

    def take(self, rows: Tensor, chosen: list[int], tokens: Tensor, owner: Tensor) -> "Layout":
        """Return the layout of some rows laid anew from place 0; ``owner`` is each remaining token's row among them."""
        spans = tuple(self.spans[r] for r in chosen)
        begin = upload(_offsets(spans), self.starts.device)
        inside = self.source.index_select(0, tokens) - self.starts.index_select(0, rows).index_select(0, owner)
        return replace(self, source=begin.index_select(0, owner) + inside, starts=begin, spans=spans)


def upload(values: Sequence[int], device: torch.device) -> Tensor:
    """Return integers of the host on the device, without waiting for it."""
    return torch.tensor(values, dtype=torch.long).to(device, non_blocking=True)


def _offsets(spans: tuple[int, ...]) -> list[int]:
    return [end - span for end, span in zip(accumulate(spans), spans, strict=True)]
