"""Metrics as (sum, count) and extremes: exact over micro-batches and ranks, brought to the host in one transfer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..batch import Ranks
from ..numerics import accumulator, total
from ..registry import ColumnError, Max, Mean, Min


@dataclass(slots=True, eq=False)
class Measure:
    """One metric so far: ``"mean"`` keeps (sum, count), ``"max"`` and ``"min"`` an extreme."""

    kind: str
    value: Tensor | float
    count: Tensor | float = 1.0


def measure(x: Any, who: str) -> Measure:
    """Turn what a component reported into something that adds up; gradients stop here."""
    if isinstance(x, Tensor):
        x = Mean(x)
    if isinstance(x, Mean) and isinstance(x.x, Tensor) and x.where is None:  # by far the most, so they come first
        value = x.x.detach() if x.x.requires_grad else x.x
        return Measure("mean", total(value), float(value.numel()))
    if isinstance(x, (int, float)):
        return Measure("mean", float(x))
    if not isinstance(x, (Mean, Max, Min)):
        raise ColumnError(f"{who} reported {type(x).__name__}; expected Mean, Max, Min or a tensor.")
    if not isinstance(x.x, Tensor):
        raise ColumnError(f"{who} reported a {type(x).__name__} of {type(x.x).__name__}; expected a tensor.")
    if x.where is not None and x.where.dtype != torch.bool:
        raise ColumnError(f"{who} reported a measure whose 'where' is {x.where.dtype}; expected booleans.")
    value = x.x.detach() if x.x.requires_grad else x.x
    if isinstance(x, Mean):
        assert x.where is not None
        return Measure("mean", total(torch.where(x.where, value, 0)), total(x.where))
    value = value.to(accumulator(value))  # integers and booleans know no infinity
    sign, kind = (1, "max") if isinstance(x, Max) else (-1, "min")
    flat = sign * (value.flatten() if x.where is None else torch.where(x.where, value, -sign * float("inf")).flatten())
    return Measure(kind, sign * torch.cat([flat, flat.new_full((1,), float("-inf"))]).amax())


def added(reports: Iterable[Mapping[str, Measure]]) -> dict[str, Measure]:
    """Return one report that means the same as all of them together."""
    out: dict[str, Measure] = {}
    for report in reports:
        for name, m in report.items():
            known = out.get(name)
            if known is None:
                out[name] = m
            elif m.kind == "mean":
                out[name] = Measure("mean", known.value + m.value, known.count + m.count)
            else:
                out[name] = Measure(m.kind, (torch.maximum if m.kind == "max" else torch.minimum)(extreme(known), extreme(m)))
    return out


def extreme(m: Measure) -> Tensor:
    """Return the value of a largest or smallest, which always stands on the device."""
    assert isinstance(m.value, Tensor)
    return m.value


def combined(reports: Iterable[Mapping[str, Measure]], ranks: Ranks) -> dict[str, float]:
    """Return every metric over all reports and ranks; a mean of nothing is left out.

    Ranks must report the same names, which they do as long as each has at least one micro-batch.
    """
    sums: dict[str, list[Measure]] = {}
    for report in reports:
        for name, m in report.items():
            sums.setdefault(name, []).append(m)
    if not sums:
        return {}
    names = sorted(sums)
    # A plain number stands on the host and must not pull everything else there, one by one.
    devices = (m.value.device for found in sums.values() for m in found if isinstance(m.value, Tensor))
    device = max(devices, key=lambda d: d.type != "cpu", default=torch.device("cpu"))
    wide = torch.float32 if device.type == "mps" else torch.float64

    def add(values: list[Any]) -> Tensor:
        host = sum(v for v in values if not isinstance(v, Tensor))
        tensors = [v.to(device=device, dtype=wide) for v in values if isinstance(v, Tensor)]
        return torch.stack([*tensors, torch.full((), float(host), dtype=wide, device=device)]).sum()

    averages = [n for n in names if sums[n][0].kind == "mean"]
    extremes = [n for n in names if n not in averages]
    added = [t for n in averages for t in (add([m.value for m in sums[n]]), add([m.count for m in sums[n]]))]
    highest = [torch.stack([(extreme(m) if m.kind == "max" else -extreme(m)).to(wide) for m in sums[n]]).amax() for n in extremes]
    empty = torch.zeros(0, dtype=wide, device=device)
    totals = ranks.sum(torch.stack(added)) if added else empty
    peaks = ranks.max(torch.stack(highest)) if highest else empty
    host = torch.cat([totals, peaks]).tolist()  # the one wait for the device
    told: dict[str, float] = {}
    for i, n in enumerate(averages):
        value, count = host[2 * i], host[2 * i + 1]
        if count:
            told[n] = value / count
    for n, value in zip(extremes, host[2 * len(averages) :], strict=True):
        if value != float("-inf"):
            told[n] = value if sums[n][0].kind == "max" else -value
    return {n: told[n] for n in names if n in told}
