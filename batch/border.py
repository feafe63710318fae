"""The border: columns are named, checked and cut to sampled tokens here, with one look from the host and errors that name the column."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from ..registry import Column, ColumnError, Level, Vocabulary, nearest
from .layout import Layout
from .names import translation
from .sequences import Sequences


@dataclass(frozen=True)
class Packed:
    """What the border hands to ``Batch``."""

    sequences: Sequences
    columns: dict[str, Tensor]
    levels: dict[str, Level]
    layout: Layout
    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    prompts: tuple[int, ...]


@dataclass(frozen=True)
class Outside:
    """The shape that columns have outside: ``P`` positions in ``S`` rows."""

    mask: Tensor
    """``[P]``: bool."""
    row: Tensor
    """``[P]``: the row of each position."""
    starts: Tensor
    """``[S]``: the first position of each row."""
    spans: tuple[int, ...]
    shape: tuple[int, ...]
    """How a token column begins: ``(B, T)`` or ``(P,)``."""
    width: int | None = None
    jagged: bool = False
    stray: Tensor | None = None
    """How many values of the mask were neither 0 nor 1."""


def cross(
    outside: Outside, given: Mapping[str, Any], *, names: str, fields: Iterable[Column], masked_rewards: str, per_sequence: Iterable[str]
) -> Packed:
    """Check every column, look at the device once, and pack."""
    if torch.is_inference_mode_enabled():
        raise ColumnError("a batch made under torch.inference_mode() cannot take part in a loss; make it outside, or use torch.no_grad().")
    if masked_rewards not in ("error", "drop", "to-sequence"):
        raise ColumnError(f"masked_rewards={masked_rewards!r}: say 'error', 'drop' or 'to-sequence'.")
    vocabulary = Vocabulary().extended(fields)
    ours = translation(names)
    named = _named(given, ours, vocabulary)
    coarse = {ours.get(name, name) for name in per_sequence}
    if unknown := coarse - named.keys():
        raise ColumnError(f"per_sequence names {min(unknown)!r}, but no such column is given.{nearest(min(unknown), named)}")
    ids = _group_ids(named.pop("group_ids"), outside) if "group_ids" in named else None
    columns, levels = {}, {}
    for name, value in named.items():
        columns[name], levels[name] = _admitted(vocabulary[name], value, outside, name in coarse)
    lengths, total, group_host, prompts, shiftable = _look(outside, columns, levels, ids, vocabulary, masked_rewards)
    source = torch.nonzero_static(outside.mask, size=total).squeeze(1)
    lengths_there = outside.starts.new_zeros(outside.starts.shape).index_add(0, outside.row, outside.mask.to(outside.starts.dtype))
    if masked_rewards == "to-sequence" and levels.get("token_rewards") is Level.TOKEN:
        strays = torch.where(outside.mask, 0.0, columns["token_rewards"])
        moved = strays.new_zeros(len(outside.spans)).index_add(0, outside.row, strays)
        columns["rewards"] = columns.get("rewards", torch.zeros_like(moved)) + moved
        levels["rewards"] = Level.SEQUENCE
    packed = {n: x.index_select(0, source) if levels[n] is Level.TOKEN else x.clone() for n, x in columns.items()}
    sequences = Sequences.of(lengths_there, total, ids, len(set(group_host)) if ids is not None else None)
    if ids is not None:
        packed["group_ids"], levels["group_ids"] = ids, Level.SEQUENCE
    layout = Layout(source, outside.starts, outside.spans, outside.width, outside.jagged, shiftable)
    return Packed(sequences, packed, levels, layout, tuple(lengths), ranked(group_host), tuple(prompts))


def ranked(ids: Iterable[int]) -> tuple[int, ...]:
    """Return each id's rank among the distinct ids: the slot that ``Sequences`` gives it."""
    ids = tuple(ids)
    slot = {value: i for i, value in enumerate(sorted(set(ids)))}
    return tuple(slot[i] for i in ids)


def _named(given: Mapping[str, Any], ours: Mapping[str, str], vocabulary: Vocabulary) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for theirs, value in given.items():
        name = ours.get(theirs, theirs)
        if value is None:
            raise ColumnError(f"column {theirs!r} is None; leave it out instead.")
        if name not in vocabulary or vocabulary[name].level not in (Level.TOKEN, Level.SEQUENCE):
            raise ColumnError(
                f"there is no column {theirs!r}.{nearest(theirs, [n for n in vocabulary if vocabulary[n].level in (Level.TOKEN, Level.SEQUENCE)])}"
                f" A column of your own is declared by column({theirs!r}, level=..., doc=...) and passed in fields=[...]."
            )
        if name in named:
            raise ColumnError(f"column {name!r} is given twice, once as {theirs!r}.")
        named[name] = value
    return named


def _admitted(column: Column, value: Any, outside: Outside, per_sequence: bool) -> tuple[Tensor, Level]:
    name, rows = column.name, len(outside.spans)
    if isinstance(value, Tensor) and value.is_nested and not outside.jagged:
        raise ColumnError(f"column {name!r} is a nested tensor, the mask is none; see from_nested.")
    try:
        x = value.values() if isinstance(value, Tensor) and value.is_nested else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ColumnError(f"column {name!r} is no tensor: {error}.") from error
    if x.device != outside.mask.device:
        if isinstance(value, Tensor):
            raise ColumnError(f"column {name!r} is on {x.device}, the mask on {outside.mask.device}.")
        x = x.to(outside.mask.device)
    if column.integer and x.is_floating_point():
        raise ColumnError(f"column {name!r} holds {x.dtype}; expected integers.")
    if x.is_complex():
        raise ColumnError(f"column {name!r} holds {x.dtype}; expected real numbers.")
    level = _level(column, x, outside, per_sequence, rows)
    x = x.flatten(0, 1) if level is Level.TOKEN and len(outside.shape) == 2 else x
    if not column.integer:
        x = x if x.dtype in (torch.float32, torch.float64) else x.float()
    return (x if column.differentiable else x.detach()), level


def _level(column: Column, x: Tensor, outside: Outside, per_sequence: bool, rows: int) -> Level:
    extra = 1 if column.wide else 0
    shape = tuple(x.shape)
    token = len(shape) == len(outside.shape) + extra and shape[: len(outside.shape)] == outside.shape
    sequence = len(shape) == 1 + extra and shape[0] == rows
    if token and sequence and outside.spans != (1,) * rows:
        return Level.SEQUENCE if per_sequence or column.level is Level.SEQUENCE else Level.TOKEN
    if token and column.level is Level.TOKEN and not per_sequence:
        return Level.TOKEN
    if sequence:
        return Level.SEQUENCE  # a column may be given at a coarser level; it is spread on request, never summed
    k = ", K" if column.wide else ""
    wanted = (
        [f"[{rows}{k}]"]
        if column.level is Level.SEQUENCE or per_sequence
        else [f"[{', '.join(map(str, outside.shape))}{k}]", f"[{rows}{k}] (per sequence)"]
    )
    note = " It is one value per sequence; rewards of single tokens go into 'token_rewards'." if token and column.name == "rewards" else ""
    raise ColumnError(f"column {column.name!r} has the shape {list(shape)}; expected {' or '.join(wanted)}.{note}")


def _group_ids(value: Any, outside: Outside) -> Tensor:
    """Return ``[S]`` int64; text becomes a stable 64-bit hash, so that ranks agree without talking."""
    rows = len(outside.spans)
    if isinstance(value, Tensor):
        if value.is_floating_point() or value.shape != (rows,):
            raise ColumnError(
                f"column 'group_ids' is {value.dtype} {list(value.shape)}; expected {rows} integers or strings, one per sequence."
            )
        return value.detach().to(device=outside.mask.device, dtype=torch.long, copy=True)
    texts = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    if len(texts) != rows:
        raise ColumnError(f"column 'group_ids' has {len(texts)} entries for {rows} sequences.")
    if all(isinstance(t, str) for t in texts):
        hashes = {t: int.from_bytes(blake2b(t.encode(), digest_size=8).digest(), "little", signed=True) for t in set(texts)}
        if len(set(hashes.values())) != len(hashes):
            raise ColumnError("two different group ids have the same 64-bit hash; rename one.")
        texts = [hashes[t] for t in texts]
    try:
        return torch.tensor(
            [int(t) if not isinstance(t, float) else _refuse(t) for t in texts], dtype=torch.long, device=outside.mask.device
        )
    except (TypeError, ValueError) as error:
        raise ColumnError(f"column 'group_ids' must hold integers or strings: {error}.") from error


def _refuse(value: Any) -> int:
    raise ValueError(f"{value!r} is neither")


def _look(
    outside: Outside, columns: dict[str, Tensor], levels: dict[str, Level], ids: Tensor | None, vocabulary: Vocabulary, masked_rewards: str
) -> tuple[list[int], int, list[int], list[int], bool]:
    """Bring lengths, ids and the counts of everything that may be wrong to the host in one transfer."""
    rows, mask = len(outside.spans), outside.mask
    empty = torch.zeros((), dtype=torch.long, device=mask.device)
    floats = [n for n in columns if not vocabulary[n].integer]
    # A masked reward that is to count for its sequence is no garbage, so it is looked at wherever it stands.
    counting = "token_rewards" if masked_rewards == "to-sequence" else ""
    bad = [_wrong(columns[n], vocabulary[n], mask if levels[n] is Level.TOKEN and n != counting else None) for n in floats]
    astray = empty
    if "token_rewards" in columns and levels["token_rewards"] is Level.TOKEN:
        astray = ((columns["token_rewards"] != 0) & ~mask).sum()
    counts = [outside.stray if outside.stray is not None else empty, astray, *(b.sum() for b in bad)]
    lengths = empty.new_zeros(rows).index_add(0, outside.row, mask.long())
    prompts = columns.get("prompt_lengths", empty.new_zeros(0)).long()
    places = torch.arange(mask.shape[0], device=mask.device)
    first = (mask & (places == outside.starts.index_select(0, outside.row))).sum().reshape(1)
    parts = [torch.stack(counts), lengths, ids if ids is not None else empty.new_zeros(0), prompts, first]
    told = torch.cat(parts).tolist()  # the one wait for the device
    cuts = [len(p) for p in parts]
    edges = [sum(cuts[:i]) for i in range(len(cuts) + 1)]
    (stray, misplaced, *broken), per_row, group_host, prompt_host, (front,) = (told[a:b] for a, b in pairwise(edges))
    if stray:
        raise ColumnError(f"the mask has {stray} values that are neither 0 nor 1.")
    if misplaced and masked_rewards == "error":
        raise ColumnError(
            f"column 'token_rewards' pays {misplaced} rewards at masked positions. Say masked_rewards='to-sequence' to count them for the "
            f"whole sequence, or 'drop' to drop them."
        )
    for name, wrong, count in zip(floats, bad, broken, strict=True):
        if count:
            raise ColumnError(_located(vocabulary[name], columns[name], wrong, levels[name], outside, count))
    return per_row, sum(per_row), group_host, prompt_host, not front


def _wrong(x: Tensor, column: Column, where: Tensor | None) -> Tensor:
    wrong = _unfit(x, column)
    wrong = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
    return wrong if where is None else wrong & where


def _unfit(x: Tensor, column: Column) -> Tensor:
    wrong = x.isinf() if column.nan_means else ~x.isfinite()
    return wrong & (x != float("-inf")) if column.inf_means else wrong


def _located(column: Column, x: Tensor, wrong: Tensor, level: Level, outside: Outside, count: int) -> str:
    place = int(wrong.nonzero()[0])
    at = f"sequence {place}"
    if level is Level.TOKEN:
        row = int(outside.row[place])
        at = f"sequence {row}, position {place - int(outside.starts[row])}"
    value = x[place].flatten()
    shown = value[_unfit(value, column)][0].item()
    more = f" and not finite at {count - 1} more places" if count > 1 else ""
    advice = shown == float("-inf") and column.name.endswith("log_prob")
    hint = " There is no ratio to a policy that could not have sampled the token: take it out of the mask." if advice else ""
    return f"column {column.name!r} is {shown} at {at}{more}.{hint}"


def jagged_parts(x: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Return ``(offsets, values)`` of a jagged nested tensor without holes; anything else raises ``ColumnError``."""
    if not x.is_nested or x.layout is not torch.jagged:
        raise ColumnError(f"{name} is no jagged nested tensor; use from_padded or from_packed.")
    jagged: Any = x  # the methods of a subclass that torch does not name
    if jagged.lengths() is not None:
        raise ColumnError(f"{name} is a jagged nested tensor with holes between its rows; call .contiguous() first.")
    return jagged.offsets(), jagged.values()
