"""A batch: flat columns by name. Padding and masks end here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..registry import Column, ColumnError, Level, Mean, Measured, Totals, listing
from .border import Outside, cross, ranked
from .layout import Layout
from .sequences import Sequences


@dataclass(frozen=True)
class Batch:
    """Packed columns and the sequences they belong to; immutable, every method returns a new one.

    A token column is ``[N]`` (one value per sampled token), a sequence column ``[S]``. Prompts, padding and the tokens of tools are
    simply absent, so nothing that stood there can reach a loss or a gradient. ``lengths``, ``groups`` and ``prompts`` repeat on the
    host what planning needs, so that nothing waits for the device after the border.
    """

    sequences: Sequences
    columns: Mapping[str, Tensor]
    levels: Mapping[str, Level]
    layout: Layout
    rows: Tensor
    """``[S]``: each sequence's row in the batch that crossed the border; indexes the model's inputs."""
    lengths: tuple[int, ...]
    groups: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    """``[N]`` by aggregation: what ``weigh`` made."""
    coefficients: Mapping[str, Tensor] = field(default_factory=dict)
    """0-d by term: what ``weigh`` fixed for this optimizer step."""
    totals: Totals | None = None
    reports: Mapping[str, Any] = field(default_factory=dict)
    """What ``estimate`` measured."""

    # ── the border ───────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def from_padded(
        cls,
        response_mask: Tensor,
        *,
        names: str = "lossary",
        fields: Iterable[Column] = (),
        masked_rewards: str = "error",
        **columns: Any,
    ) -> Self:
        """Take in ``[B, T]`` columns; only positions where the mask is 1 come along.

        ``[B]`` columns are per sequence. ``group_ids`` may be integers or strings. ``names="verl"`` reads another framework's column
        names, ``fields`` adds columns of your own. A token reward on a masked position is an error, or is dropped (``"drop"``) or paid
        to the whole sequence (``"to-sequence"``), as ``masked_rewards`` says. A column that is unknown, misshapen, on another device or
        not finite at a sampled token raises ``ColumnError``. Waits for the device once.
        """
        mask = torch.as_tensor(response_mask)
        if mask.dim() != 2:
            raise ColumnError(f"the mask has the shape {list(mask.shape)}; expected [sequences, positions].")
        rows, width = mask.shape
        flat, stray = _boolean(mask.flatten())
        starts = torch.arange(rows, device=mask.device) * width
        row = torch.arange(rows, device=mask.device).repeat_interleave(width, output_size=rows * width)
        outside = Outside(flat, row, starts, (width,) * rows, (rows, width), width=width, stray=stray)
        return cls._made(cross(outside, columns, names=names, fields=fields, masked_rewards=masked_rewards, per_sequence=()))

    @classmethod
    def from_nested(
        cls, response_mask: Tensor, *, names: str = "lossary", fields: Iterable[Column] = (), masked_rewards: str = "error", **columns: Any
    ) -> Self:
        """Take in jagged nested tensors ``[B, j]``, as in verl's no-padding mode; otherwise like ``from_padded``."""
        if not response_mask.is_nested or response_mask.layout is not torch.jagged:
            raise ColumnError("the mask is no jagged nested tensor; use from_padded or from_packed.")
        outside = _end_to_end(response_mask.offsets().diff(), response_mask.values(), jagged=True)
        for name, x in columns.items():
            if isinstance(x, Tensor) and x.is_nested and not torch.equal(x.offsets(), response_mask.offsets()):
                raise ColumnError(f"column {name!r} is nested with other lengths than the mask.")
        return cls._made(cross(outside, columns, names=names, fields=fields, masked_rewards=masked_rewards, per_sequence=()))

    @classmethod
    def from_packed(
        cls,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        cu_seqlens: Tensor | None = None,
        response_mask: Tensor | None = None,
        names: str = "lossary",
        fields: Iterable[Column] = (),
        masked_rewards: str = "error",
        per_sequence: Iterable[str] = (),
        **columns: Any,
    ) -> Self:
        """Take in sequences that lie end to end: ``[P]`` columns with ``lengths`` or ``cu_seqlens``.

        Without ``response_mask [P]`` every position is a sampled token. ``per_sequence`` names columns that are per sequence where the
        shape alone cannot tell (as many positions as sequences). Otherwise like ``from_padded``.
        """
        if (lengths is None) == (cu_seqlens is None):
            raise ColumnError("from_packed needs either lengths or cu_seqlens.")
        device = next((x.device for x in (response_mask, *columns.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        spans = torch.as_tensor(lengths if lengths is not None else torch.as_tensor(cu_seqlens).diff(), device=device).long()
        outside = _end_to_end(spans, response_mask)
        packed = cross(outside, columns, names=names, fields=fields, masked_rewards=masked_rewards, per_sequence=per_sequence)
        return cls._made(packed)

    @classmethod
    def _made(cls, p: Any) -> Self:
        rows = torch.arange(len(p.lengths), device=p.sequences.lengths.device)
        return cls(p.sequences, p.columns, p.levels, p.layout, rows, p.lengths, p.groups, p.prompts)

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Return how many sequences there are."""
        return len(self.lengths)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Tensor:
        """Return a column as it is kept."""
        if name not in self.columns:
            raise ColumnError(f"the batch has no column {name!r}; it has {listing(self.columns)}.")
        return self.columns[name]

    def column(self, name: str, level: Level | None = None) -> Tensor:
        """Return a column at the level asked for: a sequence column is spread to tokens, a token column is never summed."""
        x = self[name]
        if level is None or level is self.levels[name]:
            return x
        if level is Level.TOKEN and self.levels[name] is Level.SEQUENCE:
            return self.sequences.spread(x)
        raise ColumnError(f"column {name!r} has one value per {self.levels[name].value}; one per {level.value} was asked for.")

    def with_columns(self, level: Level, **columns: Tensor) -> Self:
        """Return a batch with columns added or replaced, all at one level."""
        return replace(self, columns={**self.columns, **columns}, levels={**self.levels, **dict.fromkeys(columns, level)})

    def pack(self, x: Tensor, *, shift: bool = False) -> Tensor:
        """Return the sampled tokens ``[N, ...]`` of a tensor in the batch's outside shape; differentiable.

        ``shift`` says that ``x`` is a model's output over prompt and response, whose position t speaks of token t + 1.
        """
        return self.layout.pack(x, shift=shift)

    def unpack(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return ``[N, ...]`` in the batch's outside shape, with ``fill`` wherever no sampled token was; differentiable."""
        return self.layout.unpack(x, fill)

    # ── parts ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, chosen: Sequence[int]) -> Self:
        """Return the batch of some sequences, in the order given; weights and totals come along."""
        device, chosen = self.rows.device, list(chosen)
        where = torch.tensor(chosen, dtype=torch.long, device=device)
        lengths = tuple(self.lengths[i] for i in chosen)
        groups = ranked(self.groups[i] for i in chosen) if self.groups else ()
        ids = self.columns["group_ids"].index_select(0, where) if self.groups else None
        sequences = Sequences.of(self.sequences.lengths.index_select(0, where), sum(lengths), ids, len(set(groups)))
        tokens = sequences.spread(self.sequences.offsets.index_select(0, where)) + sequences.places
        layout = self.layout.take(where, chosen, tokens, sequences.index)
        part = self._cut(sequences, layout, lengths, lambda level: tokens if level is Level.TOKEN else where)
        return replace(part, rows=self.rows.index_select(0, where), groups=groups, prompts=tuple(self.prompts[i] for i in chosen if self.prompts))

    def select(self, keep: Tensor) -> Self:
        """Return the batch of some tokens (``keep``: ``[N]`` bool). Sequences stay, though they may become empty. Waits for the device."""
        tokens = keep.nonzero().squeeze(1)
        lengths = self.sequences.sum(keep.to(torch.float64)).long()
        ids = self.columns["group_ids"] if self.groups else None
        sequences = Sequences.of(lengths, tokens.shape[0], ids, len(set(self.groups)))
        layout = replace(self.layout, source=self.layout.source.index_select(0, tokens))
        return self._cut(sequences, layout, tuple(lengths.tolist()), lambda level: tokens if level is Level.TOKEN else None)

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        from torch.utils._pytree import tree_map_only

        moved: Self = tree_map_only(Tensor, lambda t: t.to(device), self)
        return moved

    def _cut(self, sequences: Sequences, layout: Layout, lengths: tuple[int, ...], index: Callable[[Level], Tensor | None]) -> Self:
        def cut(x: Tensor, level: Level) -> Tensor:
            where = index(level)
            return x if where is None else x.index_select(0, where)

        columns = {name: cut(x, self.levels[name]) for name, x in self.columns.items()}
        weights = {name: cut(x, Level.TOKEN) for name, x in self.weights.items()}
        return replace(self, sequences=sequences, layout=layout, columns=columns, weights=weights, lengths=lengths)


def _boolean(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    if mask.dtype == torch.bool:
        return mask, None
    on = mask == 1
    return on, (~on & (mask != 0)).sum()


def _end_to_end(lengths: Tensor, mask: Tensor | None, *, jagged: bool = False) -> Outside:
    spans = tuple(lengths.tolist())
    if any(span < 0 for span in spans):
        raise ColumnError(f"lengths must not be negative; sequence {next(i for i, s in enumerate(spans) if s < 0)} has {min(spans)}.")
    total, device = sum(spans), lengths.device
    flat, stray = _boolean(mask.flatten()) if mask is not None else (torch.ones(total, dtype=torch.bool, device=device), None)
    if flat.shape[0] != total:
        raise ColumnError(f"the mask has {flat.shape[0]} positions, the lengths add up to {total}.")
    row = torch.arange(len(spans), device=device).repeat_interleave(lengths, output_size=total)
    return Outside(flat, row, lengths.cumsum(0) - lengths, spans, (total,), jagged=jagged, stray=stray)
