"""A batch as named tensors and plain values, and back: what both sides of a dump agree on. What follows from the rest is not kept twice."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..batch.batch import is_spread
from ..batch.border import ranked
from ..batch.layout import Layout
from ..pipeline.metrics import Measure
from ..registry import FIELDS, Level, LossaryError, Totals

T = TypeVar("T")
FLAGS = ("idle", "estimated", "measured")
COUNTS = ("tokens", "sequences", "groups", "tokens_original")
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
MOST_POSITIONS = 1 << 32
"""Positions of a layout that are believed: whoever unpacks a column allocates them all."""


class DumpError(LossaryError):
    """A file is no dump of a batch, or one whose parts contradict each other."""


def unpacked(batch: Batch) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the plain values that ``packed`` makes the same batch of. Waits for the device."""
    layout = batch.layout
    tensors = {"lengths": batch.sequences.lengths, "rows": batch.rows, "layout.source": layout.source, "layout.starts": layout.starts}
    tensors |= {f"column.{n}": x for n, x in batch.columns.items()}
    tensors |= {f"weight.{n}": x[:1] if is_spread(x) else x for n, x in batch.weights.items()}
    tensors |= {f"coefficient.{n}": x for n, x in batch.coefficients.items()}
    if batch.within is not None:
        tensors["within"] = batch.within
    if batch.totals is not None:
        tensors |= {f"totals.{n}": getattr(batch.totals, n) for n in COUNTS}
    said: dict[str, Any] = {
        "levels": {n: level.value for n, level in batch.levels.items()},
        "prompts": list(batch.prompts),
        "layout": {"spans": list(layout.spans), "width": layout.width, "jagged": layout.jagged, "shiftable": layout.shiftable},
        "flags": {n: getattr(batch, n) for n in FLAGS},
        "reports": {n: [m.kind, float(m.value), float(m.count)] for n, m in batch.reports.items()},
    }
    if batch.kept is not None:
        inner, said["kept"] = unpacked(batch.kept)
        tensors |= {f"kept.{n}": x for n, x in inner.items()}
    return {n: x.detach().contiguous().cpu() for n, x in tensors.items()}, said


def packed(tensors: Mapping[str, Tensor], said: Mapping[str, Any], outer: Batch | None = None) -> Batch:
    """Return the batch of what ``unpacked`` gave; parts that are missing or do not fit together raise ``DumpError``."""
    kept = {n.removeprefix("kept."): x for n, x in tensors.items() if n.startswith("kept.")}
    own = {n: x for n, x in tensors.items() if not n.startswith("kept.")}
    lengths, rows, levels = _whole(own, "lengths"), _whole(own, "rows"), _levels(said)
    if bool((lengths < 0).any()) or rows.shape != lengths.shape:
        raise DumpError(f"lengths {list(lengths.shape)} and rows {list(rows.shape)} are not one count and one row per sequence.")
    total = sum(lengths.tolist())  # on the host: a made-up length overflows no tensor
    layout = _layout(own, _part(said, "layout", dict), total, len(rows))  # first: it says that the tokens are there
    columns = {n.removeprefix("column."): x for n, x in own.items() if n.startswith("column.")}
    weights = {n.removeprefix("weight."): _spread(x, total) for n, x in own.items() if n.startswith("weight.")}
    if set(columns) != set(levels):
        odd = min(set(columns) ^ set(levels))
        raise DumpError(f"column {odd!r} has {'no tensor' if odd in levels else 'no level'}.")
    for name, x in {**columns, **weights}.items():
        size = len(rows) if levels.get(name) is Level.SEQUENCE and name in columns else total
        if x.dim() == 0 or x.shape[0] != size:
            raise DumpError(f"{name!r} has the shape {list(x.shape)}; expected [{size}, ...].")
        _numbers(name, x)
    ids = columns.get("group_ids")
    if ids is not None and (ids.dim() != 1 or ids.dtype != torch.long):
        raise DumpError(f"column 'group_ids' is {ids.dtype} {list(ids.shape)}; expected one 64-bit integer per sequence.")
    batch = Batch(
        sequences=Sequences.of(lengths, total, ids, None if ids is None else len(set(ids.tolist()))),
        columns=columns,
        levels=levels,
        layout=layout,
        rows=rows,
        lengths=tuple(lengths.tolist()),
        groups=() if ids is None else ranked(ids.tolist()),
        prompts=_integers(said, "prompts", (0, len(rows))),
        weights=weights,
        coefficients={n.removeprefix("coefficient."): _number(own, n) for n in own if n.startswith("coefficient.")},
        totals=Totals(*(_number(own, f"totals.{n}") for n in COUNTS)) if "totals.tokens" in own else None,
        reports=_reports(_part(said, "reports", dict)),
        within=_within(own, lengths, outer),
        **_flags(said),
    )
    inner = packed(kept, _part(said, "kept", dict), batch) if kept or "kept" in said else None
    return replace(batch, kept=inner)


def _numbers(name: str, x: Tensor) -> None:
    """Refuse what no loss computes with, and real numbers where whole ones are counted, or the reverse."""
    said = FIELDS.get(name)
    kinds = (*REAL, *WHOLE, torch.bool) if said is None else WHOLE if said.integer else REAL
    if x.dtype not in kinds:
        raise DumpError(
            f"{name!r} holds {x.dtype}; expected {'numbers' if said is None else 'integers' if said.integer else 'real numbers'}."
        )


def _whole(tensors: Mapping[str, Tensor], name: str, total: int | None = None) -> Tensor:
    """Return a tensor of 64-bit integers ``[total]``."""
    x = tensors.get(name)
    if x is None:
        raise DumpError(f"the tensor {name!r} is missing.")
    if x.dtype != torch.long or x.dim() != 1 or (total is not None and x.shape[0] != total):
        raise DumpError(f"{name!r} is {x.dtype} {list(x.shape)}; expected 64-bit integers [{'S' if total is None else total}].")
    return x


def _spread(x: Tensor, total: int) -> Tensor:
    """Return a weight for each token. One that all of them share stays one number: a sum over it rounds differently from a sum over many."""
    return x.expand(total) if x.shape == (1,) else x


def _number(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    x = tensors.get(name)
    if x is None or x.dim() != 0 or x.dtype not in (torch.float32, torch.float64):
        raise DumpError(f"{name!r} is {'missing' if x is None else f'{x.dtype} {list(x.shape)}'}; expected one real number.")
    return x


def _part(said: Mapping[str, Any], name: str, kind: type[T]) -> T:
    value = said.get(name)
    if not isinstance(value, kind):
        raise DumpError(f"the part {name!r} is {type(value).__name__}; expected {kind.__name__}.")
    return value


def _integers(said: Mapping[str, Any], name: str, sizes: Iterable[int]) -> tuple[int, ...]:
    values = _part(said, name, list)
    if len(values) not in sizes or not all(type(v) is int and 0 <= v < 1 << 63 for v in values):
        raise DumpError(f"the part {name!r} is no list of {max(sizes)} counts.")
    return tuple(values)


def _levels(said: Mapping[str, Any]) -> dict[str, Level]:
    levels = _part(said, "levels", dict)
    for name, level in levels.items():
        if level not in (Level.TOKEN.value, Level.SEQUENCE.value):
            raise DumpError(f"column {name!r} is said to live at {level!r}; expected 'token' or 'sequence'.")
    return {n: Level(level) for n, level in levels.items()}


def _layout(tensors: Mapping[str, Tensor], said: Mapping[str, Any], total: int, rows: int) -> Layout:
    source, starts = _whole(tensors, "layout.source", total), _whole(tensors, "layout.starts", rows)
    spans, width = _integers(said, "spans", (rows,)), said.get("width")
    if width is not None and (type(width) is not int or any(span != width for span in spans)):
        raise DumpError(f"the padded width is {width!r}, which is not that of every row.")
    positions = sum(spans)
    if positions > MOST_POSITIONS:
        raise DumpError(f"the layout has {positions} positions; at most {MOST_POSITIONS} are believed.")
    if bool(((source < 0) | (source >= positions)).any()) or starts.tolist() != [0, *accumulate(spans)][:rows]:
        raise DumpError(f"the layout points outside its {positions} positions.")
    return Layout(source, starts, spans, width, _part(said, "jagged", bool), _part(said, "shiftable", bool))


def _flags(said: Mapping[str, Any]) -> dict[str, Any]:
    flags = _part(said, "flags", dict)
    return {n: _part(flags, n, bool) for n in FLAGS}


def _reports(said: Mapping[str, Any]) -> dict[str, Measure]:
    for name, m in said.items():
        fits = isinstance(m, list) and len(m) == 3 and m[0] in ("mean", "max", "min") and all(isinstance(x, float) for x in m[1:])
        if not fits:
            raise DumpError(f"the metric {name!r} is {m!r}; expected a kind and two numbers.")
    return {n: Measure(kind, torch.tensor(value, dtype=torch.float64), count) for n, (kind, value, count) in said.items()}


def _within(tensors: Mapping[str, Tensor], lengths: Tensor, outer: Batch | None) -> Tensor | None:
    """Return where a selection's tokens lie in their sequences; of a whole batch there is none."""
    if outer is None:
        if "within" in tensors:
            raise DumpError("'within' belongs to a selection of tokens, not to a whole batch.")
        return None
    within = _whole(tensors, "within", int(lengths.sum()))
    if lengths.shape != outer.sequences.lengths.shape:
        raise DumpError(f"the tokens that are kept belong to {len(lengths)} sequences; the batch has {len(outer)}.")
    room = outer.sequences.lengths.repeat_interleave(lengths)
    if bool(((within < 0) | (within >= room)).any()):
        raise DumpError("a kept token lies outside its sequence.")
    return within
