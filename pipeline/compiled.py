"""The terms of a micro-batch as one compiled graph: the same functions, fused, with no break, and none compiled anew from step to step.

Only tensors enter and leave. What surrounds them (names, levels, which columns there are) is fixed in a graph; their sizes are free.
"""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..registry import Level
from .bound import scalar_like
from .memory import Memory, observed
from .metrics import Measure, measure
from .outputs import Outputs
from .sides import side_of
from .summing import Summand
from .terms import Plan


class Graph:
    """Runs terms through ``torch.compile``. Batches with other columns, or other dtypes, have a graph of their own."""

    def __init__(self, plan: Plan, memory: Memory, backend: str = "inductor") -> None:
        self.plan, self.memory, self.backend = plan, memory, backend
        self._known: dict[Hashable, Callable[..., Any]] = {}

    def __call__(self, terms: Sequence[Summand], micro: Batch, outputs: Outputs, reports: dict[str, Measure]) -> dict[str, Tensor]:
        """Return what each term comes to, before its coefficient; what they report goes to ``reports``."""
        leaves: list[Tensor] = []
        form = _taken((_bare(micro), outputs.columns), leaves)
        key = form, tuple(t.term.name for t in terms), torch.is_grad_enabled()
        step = scalar_like(self.memory.step, micro.rows)
        if key in self._known:
            values, told, seen = self._known[key](step, *leaves)
        else:
            self._known[key] = torch.compile(self._function(tuple(terms), form), dynamic=True, fullgraph=True, backend=self.backend)
            with warnings.catch_warnings():  # tracing looks at .grad of what a model gave, which is no leaf
                warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
                values, told, seen = self._known[key](step, *leaves)
        reports.update({name: Measure(kind, value, count) for name, (kind, value, count) in told.items()})
        for name, x in seen.items():
            self.memory.add(name, x)
        return dict(values)

    def _function(self, terms: tuple[Summand, ...], form: Hashable) -> Callable[..., Any]:
        plan, roles = self.plan, sorted({t.term.role for t in terms})

        def run(step: Tensor, *leaves: Tensor) -> tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor]]:
            micro, columns = _filled(form, iter(leaves))
            outputs = Outputs(columns, {})
            notes = _Notes(step)
            reports: dict[str, Measure] = {}
            sides = {role: side_of(plan, role, micro, outputs, reports) for role in roles}
            values = {t.term.name: t(sides[t.term.role], notes, 1, reports) for t in terms}
            if "entropy" in outputs.columns:  # here, for it is one more walk over all tokens
                reports.setdefault("actor/entropy", measure(outputs.columns["entropy"], "entropy"))
            return values, {name: (m.kind, m.value, m.count) for name, m in reports.items()}, notes.seen

        # What is compiled is remembered by code object, few for each, and all recipes of a process would share this one.
        run.__code__ = run.__code__.replace(co_name=f"run_{len(self._known)}")
        return run


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
    """Leave out what only the host reads: it would make a new graph for every batch."""
    inner = None if micro.kept is None else _bare(micro.kept)
    return replace(micro, layout=_NOWHERE, lengths=(), groups=(), prompts=(), reports={}, kept=inner)


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
