"""A batch: flat columns by name. Padding and masks end here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..registry import Column, ColumnError, Level, Totals, listing
from .border import Outside, cross, jagged_parts, ranked
from .layout import Layout, upload
from .sequences import Sequences


@dataclass(frozen=True, repr=False)
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
    idle: bool = False
    """It stands in for nothing: one row that a model runs on, so that a rank without work keeps step; it counts as no sequence."""
    reports: Mapping[str, Any] = field(default_factory=dict)
    """What ``estimate`` measured."""
    estimated: bool = False
    """``estimate`` has seen it."""
    measured: bool = False
    """Corrections that read the current policy have looked at it."""
    kept: "Batch | None" = None
    """What the actor's terms see, where corrections dropped tokens: the same sequences with fewer tokens. The critic's see all."""
    within: Tensor | None = None
    """``[N]``, in such an inner batch: each token's place in its sequence of the outer one."""
    _known: dict[Any, Any] = field(default_factory=dict, init=False, compare=False)
    """What was worked out of the rest once: nothing here changes, so it stays true."""

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
        """Take in jagged nested tensors ``[B, j]``, as in verl's no-padding mode; otherwise like ``from_padded``.

        Waits for the device once more, for the lengths, and once for each column that does not share the mask's offsets.
        """
        offsets, mask = jagged_parts(response_mask, "the mask")
        parts = {n: jagged_parts(x, f"column {n!r}")[0] for n, x in columns.items() if isinstance(x, Tensor) and x.is_nested}
        for name, its in parts.items():
            if its is not offsets and (its.shape != offsets.shape or bool((its != offsets).any())):
                raise ColumnError(f"column {name!r} is nested with other lengths than the mask.")
        outside = _end_to_end(tuple(offsets.diff().tolist()), offsets.diff(), mask, jagged=True)
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
        shape alone cannot tell (as many positions as sequences). Otherwise like ``from_padded``; lengths that lie on the device are
        waited for.
        """
        if (lengths is None) == (cu_seqlens is None):
            raise ColumnError("from_packed needs either lengths or cu_seqlens.")
        device = next((x.device for x in (response_mask, *columns.values()) if isinstance(x, Tensor)), torch.device("cpu"))
        told = torch.as_tensor(lengths if lengths is not None else _between(cu_seqlens))
        if told.dim() != 1 or (told.is_floating_point() and len(told)):
            raise ColumnError(f"lengths are {told.dtype} {list(told.shape)}; expected one integer per sequence.")
        spans = tuple(told.tolist())
        outside = _end_to_end(spans, told.to(device, torch.long) if told.device == device else upload(spans, device), response_mask)
        packed = cross(outside, columns, names=names, fields=fields, masked_rewards=masked_rewards, per_sequence=per_sequence)
        return cls._made(packed)

    @classmethod
    def _made(cls, p: Any) -> Self:
        rows = torch.arange(len(p.lengths), device=p.sequences.lengths.device)
        return cls(p.sequences, p.columns, p.levels, p.layout, rows, p.lengths, p.groups, p.prompts)

    # ── what weigh made ──────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def share(self) -> Tensor:
        """0-d: how many of the step's tokens are here. The shares of its micro-batches on all ranks add up to 1."""
        known: Tensor | None = self._known.get("share")
        if known is None:
            assert self.totals is not None
            here = torch.full_like(self.totals.tokens, self.sequences.index.shape[0])
            known = self._known["share"] = here / self.totals.tokens.clamp(min=1)
        return known

    def weights_in(self, dtype: torch.dtype, aggregation: str) -> Tensor:
        """``[N]``: the weights of an aggregation in the dtype of a loss, converted once for all terms that share them."""
        known: Tensor | None = self._known.get((dtype, aggregation))
        if known is None:
            known = self._known[dtype, aggregation] = self.weights[aggregation].to(dtype)
        return known

    def common_weight(self, aggregation: str) -> Tensor | None:
        """0-d: the weight of every token, where an aggregation made one number for all of them and ``expand`` spread it."""
        key = "common", aggregation
        if key not in self._known:
            weight = self.weights[aggregation]
            self._known[key] = weight[0] if is_spread(weight) else None
        common: Tensor | None = self._known[key]
        return common

    # ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def __len__(self) -> int:
        """Return how many sequences there are."""
        return len(self.lengths)

    def __repr__(self) -> str:
        """Return its size and the names of its columns: the tensors themselves would fill a screen."""
        said = f"{len(self)} sequences, {self.sequences.index.shape[0]} tokens, {len(set(self.groups))} groups"
        return f"<Batch: {said}{', weighed' if self.totals is not None else ''}; {', '.join(self.columns)}>"

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
        inner = self.kept
        if inner is not None:
            where = self.kept_tokens if level is Level.TOKEN else None
            inner = inner.with_columns(level, **{n: x if where is None else x.index_select(0, where) for n, x in columns.items()})
        return replace(self, columns={**self.columns, **columns}, levels={**self.levels, **dict.fromkeys(columns, level)}, kept=inner)

    def without(self, names: Iterable[str]) -> Self:
        """Return a batch that lacks some columns."""
        gone = set(names)
        return replace(
            self,
            columns={n: x for n, x in self.columns.items() if n not in gone},
            levels={n: level for n, level in self.levels.items() if n not in gone},
            kept=None if self.kept is None else self.kept.without(gone),
        )

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
        chosen, grouped = list(chosen), "group_ids" in self.columns
        where = upload(chosen, self.rows.device)
        lengths = tuple(self.lengths[i] for i in chosen)
        groups = ranked(self.groups[i] for i in chosen) if grouped else ()
        ids = self.columns["group_ids"].index_select(0, where) if grouped else None
        sequences = Sequences.of(self.sequences.lengths.index_select(0, where), sum(lengths), ids, len(set(groups)))
        tokens = sequences.spread(self.sequences.offsets.index_select(0, where)) + sequences.places
        layout = self.layout.take(where, chosen, tokens, sequences.index)
        part = self._cut(sequences, layout, lengths, lambda level: tokens if level is Level.TOKEN else where)
        prompts = tuple(self.prompts[i] for i in chosen) if self.prompts else ()
        inner = None if self.kept is None else self.kept.take(chosen)
        return replace(part, rows=self.rows.index_select(0, where), groups=groups, prompts=prompts, kept=inner)

    def select(self, keep: Tensor) -> Self:
        """Return the batch of some tokens (``keep``: ``[N]`` bool). Sequences stay, though they may become empty. Waits for the device."""
        tokens = keep.nonzero().squeeze(1)
        lengths = self.sequences.sum(keep.to(torch.float64)).long()
        # No sequence goes, so groups keep their slots and their ranks.
        flat = Sequences.of(lengths, tokens.shape[0])
        sequences = replace(self.sequences, lengths=flat.lengths, offsets=flat.offsets, index=flat.index)
        layout = replace(self.layout, source=self.layout.source.index_select(0, tokens))
        part = self._cut(sequences, layout, tuple(lengths.tolist()), lambda level: tokens if level is Level.TOKEN else None)
        if self.kept is None:
            return part
        where = self.kept_tokens
        places = (keep.cumsum(0) - 1 - part.sequences.offsets.index_select(0, self.sequences.index)).index_select(0, where)
        inner = replace(self.kept, within=places).select(keep.index_select(0, where))
        return replace(part, kept=inner)

    def window(self, a: int, b: int) -> Self:
        """Return the tokens from ``a`` up to ``b``, wherever sequences begin, without a copy: for what looks at one token at a time.

        Sequences are those of the whole batch; of them only ``spread`` means anything here.
        """
        columns = {n: x[a:b] if self.levels[n] is Level.TOKEN else x for n, x in self.columns.items()}
        weights = {n: x[a:b] for n, x in self.weights.items()}
        sequences = replace(self.sequences, index=self.sequences.index[a:b])
        return replace(self, sequences=sequences, columns=columns, weights=weights, kept=None, within=None)

    @property
    def dropped_tokens(self) -> Tensor:
        """``[N - K]``: where the tokens lie that are not in ``kept``. Never waits for the device."""
        left = torch.ones_like(self.sequences.index, dtype=torch.bool).index_fill(0, self.kept_tokens, False)
        return torch.nonzero_static(left, size=left.shape[0] - self.kept_tokens.shape[0]).squeeze(1)

    def keeping(self, keep: Tensor) -> Self:
        """Return the same batch in which the actor's terms see fewer tokens (``keep``: bool, one per token that they see now).

        Waits for the device.
        """
        inner = replace(self, within=self.sequences.places) if self.kept is None else self.kept
        return replace(self, kept=inner.select(keep))

    @property
    def kept_tokens(self) -> Tensor:
        """``[K]``: where the tokens of ``kept`` lie in this batch."""
        assert self.kept is not None
        assert self.kept.within is not None
        return self.kept.sequences.spread(self.sequences.offsets) + self.kept.within

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        moved: Self = _moved(self, device)
        return moved

    def _cut(self, sequences: Sequences, layout: Layout, lengths: tuple[int, ...], index: Callable[[Level], Tensor | None]) -> Self:
        def cut(x: Tensor, level: Level) -> Tensor:
            where = index(level)
            return x if where is None else _picked(x, where)

        columns = {name: cut(x, self.levels[name]) for name, x in self.columns.items()}
        weights = {name: cut(x, Level.TOKEN) for name, x in self.weights.items()}
        within = None if self.within is None else cut(self.within, Level.TOKEN)
        return replace(self, sequences=sequences, layout=layout, columns=columns, weights=weights, lengths=lengths, within=within)


def _picked(x: Tensor, where: Tensor) -> Tensor:
    """Return some rows; of a number that ``expand`` spread over all of them, a shorter spread."""
    return x[:1].expand(where.shape[0]) if is_spread(x) else x.index_select(0, where)


def is_spread(x: Tensor) -> bool:
    """Return whether it is one number, spread by ``expand``."""
    return x.dim() == 1 and x.shape[0] > 1 and x.stride(0) == 0


def _moved(x: Any, device: torch.device | str) -> Any:
    """Move every tensor in what a batch is made of: dataclasses, mappings and plain values."""
    if isinstance(x, Tensor):
        return x.to(device)
    if isinstance(x, Mapping):
        return {key: _moved(value, device) for key, value in x.items()}
    if is_dataclass(x) and not isinstance(x, type):
        return replace(x, **{f.name: _moved(getattr(x, f.name), device) for f in fields(x) if f.init})
    return x


def _boolean(mask: Tensor) -> tuple[Tensor, Tensor | None]:
    if mask.dtype == torch.bool:
        return mask, None
    on = mask == 1
    return on, (~on & (mask != 0)).sum()


def _between(cu_seqlens: Any) -> Tensor:
    ends = torch.as_tensor(cu_seqlens)
    if ends.dim() != 1 or ends.shape[0] == 0:
        raise ColumnError(f"cu_seqlens has the shape {list(ends.shape)}; expected [sequences + 1], from 0 to the number of positions.")
    return ends.diff()


def _end_to_end(spans: tuple[int, ...], lengths: Tensor, mask: Tensor | None, *, jagged: bool = False) -> Outside:
    """``spans`` are the same as ``lengths``, on the host."""
    if negative := [i for i, span in enumerate(spans) if span < 0]:
        raise ColumnError(f"lengths must not be negative; sequence {negative[0]} has {spans[negative[0]]}.")
    total, device = sum(spans), lengths.device
    flat, stray = _boolean(mask.flatten()) if mask is not None else (torch.ones(total, dtype=torch.bool, device=device), None)
    if flat.shape[0] != total:
        raise ColumnError(f"the mask has {flat.shape[0]} positions, the lengths add up to {total}.")
    row = torch.arange(len(spans), device=device).repeat_interleave(lengths, output_size=total)
    return Outside(flat, row, lengths.cumsum(0) - lengths, spans, (total,), jagged=jagged, stray=stray)
