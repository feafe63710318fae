"""Somebody else's padded tensors as a batch that may be wrong: packed like at the border, but without its refusals."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..batch.border import ranked
from ..batch.layout import Layout
from ..batch.names import translation
from ..registry import FIELDS, ColumnError, Level, nearest
from .sight import Sight


def sight_of_padded(mask: Any, columns: Mapping[str, Any], names: str) -> Sight:
    """Pack ``[B, T]`` and ``[B]`` columns where the mask is 1. Only what no check could name raises ``ColumnError``: shapes and names."""
    mask = torch.as_tensor(mask)
    if mask.dim() != 2:
        raise ColumnError(f"the mask has the shape {list(mask.shape)}; expected [sequences, positions].")
    (rows, width), on = mask.shape, mask == 1
    ours, padded, packed = translation(names), {}, {}
    levels: dict[str, Level] = {}
    where = on.flatten().nonzero().squeeze(1)
    for said, value in columns.items():
        name = ours.get(said, said)
        if name not in FIELDS:
            raise ColumnError(f"there is no column {said!r}.{nearest(said, [*FIELDS, *ours])}")
        x = _numbers(name, value).to(mask.device)
        if tuple(x.shape[:2]) == (rows, width) and FIELDS[name].level is not Level.SEQUENCE:
            padded[name], levels[name] = x, Level.TOKEN
            packed[name] = x.flatten(0, 1).index_select(0, where)
        elif x.dim() >= 1 and x.shape[0] == rows and (x.dim() == 1 or FIELDS[name].wide):
            packed[name], levels[name] = x, Level.SEQUENCE
        else:
            raise ColumnError(f"column {said!r} has the shape {list(x.shape)}; expected {[rows, width]} or {[rows]}.")
    lengths = on.sum(1)
    ids = packed["group_ids"].long() if "group_ids" in packed else None
    groups = ranked(ids.tolist()) if ids is not None else ()
    sequences = Sequences.of(lengths, where.shape[0], ids, len(set(groups)) if ids is not None else None)
    starts = torch.arange(rows, device=mask.device) * width
    layout = Layout(where, starts, (width,) * rows, width)
    batch = Batch(sequences, packed, levels, layout, torch.arange(rows, device=mask.device), tuple(lengths.tolist()), groups)
    return Sight(batch, mask=mask, padded=padded)


def _numbers(name: str, value: Any) -> Tensor:
    if name == "group_ids" and not isinstance(value, Tensor):
        known: dict[Any, int] = {}
        value = [known.setdefault(v, len(known)) for v in (value.tolist() if hasattr(value, "tolist") else value)]
    try:
        return torch.as_tensor(value).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ColumnError(f"column {name!r} is no tensor: {error}.") from error
