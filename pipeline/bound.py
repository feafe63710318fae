"""A component with its hyperparameters, ready to be called on the columns it names."""

import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..registry import ColumnError, Component, ComponentError, Level, LossaryError, Measured, Totals, worded

SPECIAL = ("sequences", "totals", "state", "step", "measured")
"""Names before ``*`` that are no columns."""


@dataclass(frozen=True)
class View:
    """What a component may see: a batch's columns, those made on the way, and the special names."""

    batch: Batch
    sequences: Sequences
    made: Mapping[str, tuple[Tensor, Level]]
    totals: Totals | None = None
    step: Tensor | None = None
    state: Mapping[str, Any] | None = None
    measured: Measured | None = None

    def get(self, name: str, level: Level | None, optional: bool, who: str) -> Any:
        """Return a column by name at a level; a missing one is an error that names who asked, unless it is optional."""
        if name in SPECIAL:
            return getattr(self, name)
        if name in self.made:
            x, there = self.made[name]
            if level is None or level is there:
                return x
            if level is Level.TOKEN and there is Level.SEQUENCE:
                return self.sequences.spread(x)
            raise ColumnError(f"{who} asks for {name!r} per {level.value}, but it has one value per {there.value}.")
        if name not in self.batch:
            if optional:
                return None
            raise ColumnError(f"{who} needs the column {name!r}, which neither the batch nor the model's output brings.")
        try:
            return self.batch.column(name, level)
        except ColumnError as error:
            raise ColumnError(f"{who}: {error}") from None


@dataclass(frozen=True)
class Bound:
    """One slot of a recipe, resolved: calling it is one function call with its arguments in place."""

    component: Component
    params: Mapping[str, Any]
    slot: str
    levels: tuple[tuple[str, Level | None, bool], ...]

    @classmethod
    def of(cls, component: Component, params: Mapping[str, Any], slot: str, fields: Any) -> "Bound":
        """Resolve the level of every input once: the signature's, or else the vocabulary's for tokens and sequences."""

        def level(name: str, said: Level | None) -> Level | None:
            return said or (fields[name].level if fields[name].level in (Level.TOKEN, Level.SEQUENCE) else None)

        return cls(component, params, slot, tuple((i.name, level(i.name, i.level), i.optional) for i in component.inputs))

    @cached_property
    def who(self) -> str:
        """How errors call it."""
        return f"{self.component.kind.name} {self.component.name!r}"

    @cached_property
    def reads(self) -> frozenset[str]:
        """The names of what it asks for."""
        return frozenset(name for name, _, _ in self.levels)

    def learns(self, view: View) -> bool:
        """Whether any column it reads has a gradient."""
        return any(x.requires_grad for name, (x, _) in view.made.items() if name in self.reads)

    def __call__(self, view: View) -> Any:
        """Run the function on what a view shows."""
        made, there, columns = view.made, view.batch.levels, view.batch.columns
        found = []
        for name, level, optional in self.levels:
            known = made.get(name)
            if known is not None and known[1] is level:
                found.append(known[0])
            elif known is None and level is not None and there.get(name) is level:
                found.append(columns[name])
            else:
                found.append(view.get(name, level, optional, self.who))
        return self.call(found)

    def call(self, columns: list[Any], function: Callable[..., Any] | None = None) -> Any:
        """Run the function, or another of the component's; whatever it raises says whose it was."""
        function = function or self.component.function
        try:
            return function(*columns, **self.params)
        except (Exception, SystemExit) as error:  # a component may raise anything; the night is shorter when it says whose it was
            if isinstance(error, LossaryError) or type(error).__module__.partition(".")[0] == "torch":
                raise  # torch steers by exceptions of its own (out of memory, recomputation, tracing), which hosts wait for
            raise ComponentError(f"{self.who} failed{_where(error, function)}: {worded(error)}") from error

    def parts(self, view: View) -> tuple[Any, Mapping[str, Any], Mapping[str, Any] | None]:
        """Run it and return ``(result, report, new state)``, whichever of them it gives."""
        out = self(view)
        state = None
        if "state" in self.reads:
            if not isinstance(out, tuple) or len(out) < 2:
                raise ColumnError(f"{self.who} names 'state' and must return (result, new_state).")
            *head, state = out
            out = tuple(head) if len(head) > 1 else head[0]
        return *self.split(out), state

    def split(self, out: Any) -> tuple[Any, Mapping[str, Any]]:
        """Return ``(result, report)`` of what a function gave, with or without a report."""
        if isinstance(out, tuple) and len(out) != 2:
            raise ColumnError(
                f"{self.who} returned {len(out)} things; expected a tensor, or (tensor, {{name: Mean | Max | Min | tensor}})."
            )
        result, report = out if isinstance(out, tuple) else (out, {})
        if not isinstance(report, Mapping):
            raise ColumnError(
                f"{self.who} returned {type(report).__name__} beside its result; expected {{name: Mean | Max | Min | tensor}}."
            )
        return result, report

    def shaped(self, x: Any, view: View, level: Level) -> Tensor:
        """Check that a result has one value per token, sequence or group, as the component's signature says."""
        if level is Level.TOKEN:
            size = view.sequences.index.shape[0]
        elif level is Level.SEQUENCE:
            size = view.sequences.lengths.shape[0]
        else:
            size = view.sequences.slots.shape[0] if view.sequences.slots is not None else 0
        if not isinstance(x, Tensor):
            raise ColumnError(f"{self.who} returned {type(x).__name__}; expected a tensor with one value per {level.value}.")
        if x.dim() != 1 or x.shape[0] != size:
            hint = " A component never reduces: return the unreduced values, the aggregation weighs them." if x.dim() == 0 else ""
            raise ColumnError(f"{self.who} returned the shape {list(x.shape)}; expected [{size}], one value per {level.value}.{hint}")
        if not x.is_floating_point():
            raise ColumnError(f"{self.who} returned {x.dtype}; expected real numbers of a floating type.")
        return x


def _where(error: BaseException, function: Callable[..., Any]) -> str:
    """Return `` at file:line``: the deepest line in the file that defines the component."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if code and f.filename == code.co_filename]
    return f" at {Path(code.co_filename).name}:{lines[-1]}" if code and lines else ""


def scalar_like(value: float | Tensor, like: Tensor) -> Tensor:
    """Return a 0-d float64 tensor beside ``like`` (float32 where its device has no float64)."""
    if isinstance(value, Tensor):
        return value
    return torch.full((), value, dtype=torch.float32 if like.device.type == "mps" else torch.float64, device=like.device)
