"""A component under examination: called on a case as the pipeline calls it, its result taken apart."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from ..batch import ONE_RANK, Batch, Ranks, Sequences
from ..pipeline import Bound
from ..pipeline.bound import View
from ..registry import ColumnError, Component, Level, LossaryError, Measured, Totals, Vocabulary, text_of, worded
from .case import Case, Seeded, drawn

LOSSES = ("policy_loss", "value_loss", "auxiliary_loss", "kl")
"""Kinds that are differentiated."""


class Off(Exception):
    """Something is not as promised: what was expected, and what was found."""

    def __init__(self, expected: str, found: str, cause: str = "") -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found, self.cause = expected, found, cause
        self.case: Case | None = None
        """What it was looked at on, where that was made from the case that was drawn."""


@contextmanager
def on(case: Case) -> Iterator[Case]:
    """Say of what goes wrong inside on which case it did."""
    try:
        yield case
    except Off as off:
        off.case = off.case or case
        raise


class Ill(Off):
    """It gave no result, or one that is not of its kind's form, so that there is nothing to look at."""


@dataclass(frozen=True)
class Part:
    """One tensor of a result, and where it lives."""

    x: Tensor
    level: Level

    def of(self, case: Case, sequences: list[int]) -> Tensor:
        """Return the values of some sequences."""
        return self.x[case.places_of(sequences)] if self.level is Level.TOKEN else self.x[torch.tensor(sequences, dtype=torch.long)]


@dataclass(frozen=True)
class Result:
    """What a component gave: tensors by name, and the state that comes next."""

    parts: Mapping[str, Part]
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Inputs:
    """What a component is called with, in order, and those of it that learn."""

    values: tuple[Any, ...]
    leaves: Mapping[str, Tensor]
    sequences: Sequences


@dataclass(frozen=True)
class Subject:
    """A component with settings, and the words it may use."""

    component: Component
    settings: Mapping[str, Any]
    fields: Vocabulary
    seen: dict[Any, Any] = field(default_factory=dict, compare=False)
    """What checks of the same component ask for again: the cases that were drawn, and what one of them has already tried."""

    @cached_property
    def bound(self) -> Bound:
        """The component as a recipe would hold it."""
        return Bound.of(self.component, self.settings, "conformance", self.fields)

    def set(self, settings: Mapping[str, Any]) -> "Subject":
        """Return the same component with other settings."""
        return Subject(self.component, settings, self.fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns it reads."""
        return tuple(i.name for i in self.component.inputs if self.fields[i.name].level is not Level.SPECIAL)

    @property
    def learns_from(self) -> tuple[str, ...]:
        """Those of them that may have a gradient."""
        return tuple(n for n in self.names if self.fields[n].differentiable)

    @cached_property
    def does_without(self) -> bool:
        """Whether it runs without its optional columns."""
        if not any(i.optional for i in self.component.inputs):
            return False
        try:
            self.bound.call(list(self.inputs(drawn(Seeded(0), self.names, self.fields, optional=False)).values))
        except ColumnError:
            return False
        except Exception:  # what else goes wrong is another check's
            return True
        return True

    def case(self, source: Any, number: int = 1) -> Case:
        """Return a case for it; every second one lacks the optional columns, where they may be absent. What a seed gives is drawn once."""
        key = (type(source), source.seed, number % 2) if isinstance(source, Seeded) else None
        found: Case | None = self.seen.get(key)
        if found is None:
            found = drawn(source, self.names, self.fields, optional=bool(number % 2) or not self.does_without)
        if key is not None:
            self.seen[key] = found
        return found

    def inputs(
        self,
        case: Case,
        *,
        dtype: torch.dtype = torch.float64,
        learn: bool = False,
        ranks: Ranks = ONE_RANK,
        totals: Totals | None = None,
        state: Mapping[str, Any] | None = None,
    ) -> Inputs:
        """Return what it is called with on a case: copies, for a component may write over what it is given."""
        columns = {n: x.to(dtype if x.is_floating_point() else x.dtype, copy=True) for n, x in case.columns.items()}
        leaves = {n: columns[n].detach().requires_grad_() for n in self.learns_from if n in columns} if learn else {}
        made = {n: (x, case.levels[n]) for n, x in {**columns, **leaves}.items() if case.levels[n] in (Level.TOKEN, Level.SEQUENCE)}
        made.pop("group_ids", None)  # the batch has them
        batch, counts = laid_out(case.lengths, case.groups)
        sequences = replace(batch.sequences, **_copied(batch.sequences))
        if state is None and self.component.init is not None:
            state = self.component.init(**self.settings)
        zero = torch.zeros((), dtype=torch.float64)
        view = View(
            batch.with_columns(Level.SEQUENCE, group_ids=batch["group_ids"].clone()),
            sequences.across(ranks),
            made,
            totals=totals if totals is not None else Totals(**_copied(counts)),
            step=torch.full((), 3.0, dtype=torch.float64),
            state=state,
            measured=Measured(zero + 0.3, zero + 0.2, zero + 4),
        )
        values: list[Any] = []
        for name, level, optional in self.bound.levels:
            if optional and not case.optional:
                values.append(None)
            elif self.fields[name].level is Level.VOCAB:
                values.append(leaves.get(name, columns[name]))
            else:
                values.append(view.get(name, level, optional, self.bound.who))
        return Inputs(tuple(values), leaves, view.sequences)

    def run(self, inputs: Inputs) -> Result:
        """Call it and take its result apart; whatever is wrong with that is ``Off``."""
        try:
            out = self.bound.call(list(inputs.values))
        except Exception as error:  # a component may raise anything
            said = text_of(error) if isinstance(error, LossaryError) else worded(error)
            raise Ill("a result", f"an error: {said.strip()}") from error
        return self.apart(out, inputs)

    def apart(self, out: Any, inputs: Inputs) -> Result:
        """Return the tensors of what it returned."""
        bound, kind = self.bound, self.component.kind.name
        state = None
        try:
            if kind == "correction":
                return Result(self._pair(out, inputs))
            if self.component.stateful:
                if not isinstance(out, tuple) or len(out) < 2:
                    raise ColumnError("it names 'state' and must return (result, new_state).")
                *head, state = out
                out = tuple(head) if len(head) > 1 else head[0]
            result, _ = bound.split(out)
        except ColumnError as error:
            raise Ill("a result as its kind promises", str(error)) from error
        if kind == "coefficient":
            if not isinstance(result, (int, float, Tensor)) or isinstance(result, bool) or (isinstance(result, Tensor) and result.dim()):
                raise Ill("one number", _what(result))
            return Result({"coefficient": Part(torch.as_tensor(result, dtype=torch.float64).reshape(1), Level.SPECIAL)}, state)
        if self.component.returns is None:
            if not isinstance(result, Mapping) or not result or set(result) - {"advantages", "returns"}:
                raise Ill("{'advantages': ..., 'returns': ...}", _what(result) if not isinstance(result, Mapping) else str(list(result)))
            return Result({n: Part(self._shaped(x, Level.TOKEN, inputs), Level.TOKEN) for n, x in result.items()}, state)
        name = {"filter": "keep", "aggregation": "weight", "advantage": "advantages", "reward": "reward"}.get(kind, "loss")
        level = self.component.returns
        return Result({name: Part(self._shaped(result, level, inputs, boolean=kind == "filter"), level)}, state)

    def _pair(self, out: Any, inputs: Inputs) -> dict[str, Part]:
        if not isinstance(out, tuple) or len(out) != 2:
            raise Ill("(weight, keep), or ((weight, keep), report)", _what(out))
        weight, keep = out[0] if isinstance(out[0], tuple) else out
        if weight is not None and not self.component.weighs:
            raise Ill("None as the weight, as its annotation promises", _what(weight))
        if keep is not None and not self.component.drops:
            raise Ill("None as keep, as its annotation promises", _what(keep))
        parts = {}
        if weight is not None:
            parts["weight"] = Part(self._shaped(weight, Level.TOKEN, inputs), Level.TOKEN)
        if keep is not None:
            parts["keep"] = Part(self._shaped(keep, Level.TOKEN, inputs, boolean=True), Level.TOKEN)
        return parts

    def _shaped(self, x: Any, level: Level, inputs: Inputs, *, boolean: bool = False) -> Tensor:
        s = inputs.sequences
        slots = 0 if s.slots is None else s.slots.shape[0]
        size = {Level.TOKEN: s.index.shape[0], Level.SEQUENCE: s.lengths.shape[0], Level.GROUP: slots}[level]
        kind = "boolean" if boolean else "real number"
        right = isinstance(x, Tensor) and tuple(x.shape) == (size,) and (x.dtype == torch.bool if boolean else x.is_floating_point())
        if not right:
            raise Ill(f"one {kind} per {level.value}, [{size}]", _what(x))
        found: Tensor = x
        return found

    def gradients(self, case: Case, weights: Tensor | None = None, **how: Any) -> tuple[Result, dict[str, Tensor]]:
        """Return the result and, of the sum of its values by weights (default: uneven ones), the gradient by each column that learns."""
        inputs = self.inputs(case, learn=True, **how)
        result = self.run(inputs)
        (part,) = result.parts.values()
        if not part.x.requires_grad:
            return result, {n: torch.zeros_like(x) for n, x in inputs.leaves.items()}
        total = (part.x * (uneven(part.x) if weights is None else weights.to(part.x.dtype))).sum()
        found = torch.autograd.grad(total, list(inputs.leaves.values()), allow_unused=True)
        return result, {n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(inputs.leaves.items(), found, strict=True)}


def uneven(x: Tensor) -> Tensor:
    """Return weights of which no two are alike."""
    return 1.0 + 0.5 * torch.sin(torch.arange(x.shape[0], device=x.device, dtype=torch.float64) * 1.7).to(x.dtype)


@lru_cache(maxsize=512)
def laid_out(lengths: tuple[int, ...], groups: tuple[int, ...]) -> tuple[Batch, Totals]:
    """Return a batch without other columns than the groups, and its counts: most checks look at the same few shapes."""
    ids = torch.tensor(groups, dtype=torch.long)
    batch = Batch.from_packed(list(lengths), per_sequence=["group_ids"], group_ids=ids)
    return batch, totals_of(batch.sequences)


def _copied(x: Sequences | Totals) -> dict[str, Any]:
    return {n: t.clone() for n, t in vars(x).items() if isinstance(t, Tensor)}


def totals_of(sequences: Sequences) -> Totals:
    """Return the counts of a step that is this batch and nothing more."""
    lengths = sequences.lengths.to(torch.float64)
    live = (lengths > 0).to(torch.float64)
    groups = torch.zeros((), dtype=torch.float64) if sequences.groups is None else (sequences.group_sum(live) > 0).sum().to(torch.float64)
    return Totals(lengths.sum(), live.sum(), groups, lengths.sum())


def _what(x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}" + (" (a single number)" if x.dim() == 0 else "")
    return type(x).__name__ if not isinstance(x, (int, float)) else repr(x)
