"""The terms of a micro-batch as one compiled graph: the same functions, fused, with no break, and none compiled anew from step to step.

Only tensors enter and leave. What surrounds them (names, levels, which columns there are) is fixed in a graph; their sizes are free.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..registry import Level, LossaryError
from .bound import scalar_like
from .memory import Memory, observed
from .metrics import Measure, measure
from .outputs import CRITIC, Outputs
from .sides import side_of
from .summing import Summand
from .terms import Plan


class Fused(NamedTuple):
    """What a graph gives."""

    values: Mapping[str, Tensor]
    """What each term comes to, before its coefficient and without a gradient."""
    sums: Mapping[str, Tensor]
    """What the terms of each role add up to, with their gradient."""


class Graph:
    """Runs terms through ``torch.compile``. Batches with other columns, or other dtypes, have a graph of their own.

    A loss and its gradient are one graph, so that what one has worked out is there for the other, and no pass over the tokens is made twice.
    """

    def __init__(self, plan: Plan, memory: Memory, backend: str = "inductor") -> None:
        self.plan, self.memory, self.backend = plan, memory, backend
        self._known: dict[Hashable, Callable[..., Any]] = {}

    def __call__(
        self, terms: Sequence[Summand], micro: Batch, coefficients: Mapping[str, Tensor], outputs: Outputs, reports: dict[str, Measure]
    ) -> Fused:
        """Return what the terms come to; what they report goes to ``reports``."""
        read = {name for t in terms for name in t.term.bound.reads} if torch.is_grad_enabled() else ()
        slopes = tuple(name for name, x in outputs.columns.items() if name in read and x.requires_grad)
        free = {t.term.name: coefficients[t.term.name] for t in terms if t.term.coefficient.fixed != 1}
        leaves: list[Tensor] = []
        form = _taken((_bare(micro), {name: x.detach() for name, x in outputs.columns.items()}, free), leaves)
        key = form, tuple(t.term.name for t in terms), slopes
        if key not in self._known:
            run = _function(self.plan, tuple(terms), form, slopes)
            # What is compiled is remembered by code object, few for each, and all recipes of a process would share this one.
            run.__code__ = run.__code__.replace(co_name=f"run_{len(self._known)}")
            self._known[key] = torch.compile(run, dynamic=True, fullgraph=True, backend=self.backend)
        with _hooks_aside():
            values, sums, told, seen, found = self._known[key](scalar_like(self.memory.step, micro.rows), *leaves)
        reports.update({name: Measure(kind, value, count) for name, (kind, value, count) in told.items()})
        for name, x in seen.items():
            self.memory.add(name, x)
        return Fused(values, {role: _with_slopes(role, x, dict(zip(slopes, found, strict=True)), outputs) for role, x in sums.items()})


def _function(plan: Plan, terms: tuple[Summand, ...], form: Hashable, slopes: tuple[str, ...]) -> Any:
    """Return what is compiled: tensors to what terms come to, what they report and, of the columns ``slopes``, the gradient."""
    roles = sorted({t.term.role for t in terms})

    def loss(
        micro: Batch, columns: dict[str, Tensor], free: dict[str, Tensor], step: Tensor, fixed: dict[str, Measure]
    ) -> tuple[Tensor, Any]:
        outputs, notes = Outputs(columns, {}), _Notes(step)
        reports: dict[str, Measure] = {}
        sides = {role: side_of(plan, role, micro, outputs, reports) for role in roles}
        values = {t.term.name: t(sides[t.term.role], notes, 1, reports) for t in terms}
        shares = {name: free[name] * x if name in free else x for name, x in values.items()}
        sums = {role: torch.stack([shares[t.term.name] for t in terms if t.term.role == role]).sum() for role in roles}
        if "entropy" in columns:  # here, for it is one more walk over all tokens
            reports.setdefault("actor/entropy", measure(columns["entropy"], "entropy"))
        fixed.update(reports)
        measured = {name: m.value for name, m in reports.items() if isinstance(m.value, Tensor)}
        counted = {name: m.count for name, m in reports.items() if isinstance(m.count, Tensor)}
        told = [{name: x.detach() for name, x in tree.items()} for tree in (values, sums, measured, counted, notes.seen)]
        return torch.stack(list(sums.values())).sum(), told

    def run(step: Tensor, *leaves: Tensor) -> tuple[Any, ...]:
        micro, columns, free = _filled(form, iter(leaves))
        fixed: dict[str, Measure] = {}

        def of(*learned: Tensor) -> tuple[Tensor, Any]:
            return loss(micro, {**columns, **dict(zip(slopes, learned, strict=True))}, free, step, fixed)

        if slopes:
            learned = tuple(range(len(slopes)))
            found, (_, told) = torch.func.grad_and_value(of, argnums=learned, has_aux=True)(*[columns[name] for name in slopes])
        else:
            found, (_, told) = (), of()
        values, sums, measured, counted, seen = told
        reports = {name: (m.kind, measured.get(name, m.value), counted.get(name, m.count)) for name, m in fixed.items()}
        return values, sums, reports, seen, found

    return run


@contextmanager
def _hooks_aside() -> Iterator[None]:
    """Set hooks on saved tensors aside (activation checkpointing, offloading): nothing is saved here, and under them no graph can be made."""
    hooks: Any = torch._C._autograd
    found = []
    while (pair := hooks._top_saved_tensors_default_hooks(True)) is not None:
        found.append(pair)
        hooks._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(found):
            hooks._push_saved_tensors_default_hooks(*pair)


def _with_slopes(role: str, x: Tensor, found: Mapping[str, Tensor], outputs: Outputs) -> Tensor:
    """Return a role's sum as a function of its columns."""
    own = [name for name in found if (name in CRITIC) == (role == "critic")]
    if not own:
        return x
    joined: Tensor = _Found.apply(x, [found[name] for name in own], *[outputs.columns[name] for name in own])  # type: ignore[no-untyped-call]
    return joined


T = TypeVar("T")


def handed_over(found: T | None, what: str) -> T:
    """Return gradients that were found with their loss, which are there for one backward pass; ``LossaryError`` afterwards."""
    if found is None:
        raise LossaryError(
            f"the gradients of this loss were handed over already: {what} can be differentiated once. "
            "Call loss again, or add losses up before backward."
        )
    return found


class _Found(torch.autograd.Function):
    """A sum whose gradient was found with it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slopes: list[Tensor], *columns: Tensor) -> Tensor:
        """Return the sum; the columns are there to be differentiated."""
        ctx.slopes = slopes
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Hand over the gradients, scaled in place."""
        slopes, ctx.slopes = handed_over(ctx.slopes, "a compiled loss"), None
        return None, None, *[slope.mul_(grad) for slope in slopes]


class _Notes:
    """What stands for the memory inside a graph, which must touch nothing outside of it."""

    def __init__(self, step: Tensor) -> None:
        self.step = step
        self.seen: dict[str, Tensor] = {}

    def observe(self, key: str, x: Tensor, sequences: Sequences, level: Level) -> None:
        """Keep what a term came to."""
        seen = observed(x, sequences, level)
        self.seen[key] = self.seen[key] + seen if key in self.seen else seen


_NOWHERE: Any = None
"""In the place of a layout, which no term reads."""


def _bare(micro: Batch) -> Batch:
    """Leave out what only the host reads, for it would make a new graph for every batch, and coefficients, which come apart."""
    inner = None if micro.kept is None else _bare(micro.kept)
    return replace(micro, layout=_NOWHERE, lengths=(), groups=(), prompts=(), coefficients={}, reports={}, kept=inner)


# ── trees of tensors ─────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def _names(kind: Any) -> tuple[str, ...]:
    """Return the fields of a dataclass; of anything else none."""
    return tuple(f.name for f in fields(kind) if f.init) if is_dataclass(kind) else ()


def _taken(x: Any, leaves: list[Tensor]) -> Any:
    """Move the tensors of a tree to ``leaves`` and return its form: ``(kind, names, parts)``, a dtype for each tensor, all else as it is.

    Equal forms run in the same graph. This is done in every step, so it looks at each thing once.
    """
    if isinstance(x, Tensor):
        leaves.append(x)
        return x.dtype
    if isinstance(x, tuple):
        return tuple, (), tuple([_taken(part, leaves) for part in x])
    if isinstance(x, dict):
        return dict, tuple(x), tuple([_taken(part, leaves) for part in x.values()])
    kind: Any = type(x)
    names = _names(kind)
    return (kind, names, tuple([_taken(getattr(x, name), leaves) for name in names])) if names else x


def _filled(form: Any, leaves: Iterator[Tensor]) -> Any:
    """Return the tree again, with these tensors."""
    if isinstance(form, torch.dtype):
        return next(leaves)
    if not isinstance(form, tuple):
        return form
    kind, names, parts = form
    made = [_filled(part, leaves) for part in parts]
    if kind is tuple:
        return tuple(made)
    return dict(zip(names, made, strict=True)) if kind is dict else kind(**dict(zip(names, made, strict=True)))
