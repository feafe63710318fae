"""What a check sees: a batch whose columns may be wrong, the recipe's plan if there is one, and padded tensors as they came."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ..batch import Batch, Sequences
from ..pipeline import Plan
from ..registry import Level
from .finding import Finding, Place, Severity


@dataclass(frozen=True)
class Sight:
    """The subject of an inspection. ``step``: how many optimizer steps were taken before; None: nobody said."""

    batch: Batch
    plan: Plan | None = None
    needed: Mapping[str, str] = field(default_factory=dict)
    """``{column: who asks for it}``, of a batch that is yet to be estimated or weighed."""
    step: int | None = None
    mask: Tensor | None = None
    """``[B, T]`` as it came, of whatever dtype and with whatever values."""
    padded: Mapping[str, Tensor] = field(default_factory=dict)
    """``[B, T]`` columns as they came."""

    def __contains__(self, column: str) -> bool:
        return column in self.batch

    def __getitem__(self, column: str) -> Tensor:
        return self.batch[column]

    @property
    def sequences(self) -> Sequences:
        """Where sequences and groups lie."""
        return self.batch.sequences

    @property
    def tokens(self) -> int:
        """How many sampled tokens there are."""
        return self.sequences.index.shape[0]

    @cached_property
    def reads(self) -> frozenset[str]:
        """What the components of the recipe read."""
        return frozenset().union(*(b.reads for b in self.plan.bounds)) if self.plan is not None else frozenset()

    def real(self, column: str) -> Tensor:
        """Return a column with 0 where it is not finite, so that one fault is not reported as ten."""
        x = self.batch[column]
        return torch.where(x.isfinite(), x, 0.0) if x.is_floating_point() else x

    def per_sequence(self, column: str) -> Tensor:
        """``[S]``: return a column in float64, the mean over each sequence where it has one value per token."""
        x = self.real(column).double()
        return self.sequences.mean(x) if self.batch.levels[column] is Level.TOKEN else x

    def at(self, where: int, column: str) -> Place:
        """Return the place of the ``where``-th value of a column."""
        if self.batch.levels[column] is not Level.TOKEN:
            return Place(column, where)
        sequence = int(self.sequences.index[where])
        return Place(column, sequence, where - int(self.sequences.offsets[sequence]))

    def first(self, wrong: Tensor, column: str) -> Place | None:
        """Return the first place where ``wrong`` holds; None if nowhere."""
        flat = wrong.flatten(1).any(1) if wrong.dim() > 1 else wrong
        return self.at(int(flat.to(torch.uint8).argmax()), column) if bool(flat.any()) else None

    def worst(self, size: Tensor, column: str, n: int = 3) -> list[tuple[Place, float]]:
        """Return the places of the ``n`` largest values, largest first."""
        top = size.topk(min(n, size.shape[0]))
        return [(self.at(int(i), column), float(v)) for i, v in zip(top.indices, top.values, strict=True)]


Found = Iterator[tuple[Severity, Place, str, str, str]]


@dataclass(frozen=True)
class Check:
    """A named question to a batch. ``needs``: columns without which it is skipped; ``cheap`` ones run in every step of a trainer."""

    name: str
    asks: str
    function: Callable[[Sight], Found]
    needs: tuple[str, ...] = ()
    cost: Literal["cheap", "full"] = "cheap"
    whole: bool = False
    """It compares answers, and what was weighed is a part of a rollout, whose groups are cut apart."""
    bare: bool = False
    """It can look at a batch without tokens."""

    def lacks(self, sight: Sight) -> str:
        """Return why it has nothing to look at; empty: it has."""
        missing = [n for n in self.needs if n not in sight]
        if missing:
            return f"no column {missing[0]!r}"
        if self.whole and sight.batch.totals is not None:
            return "a part of a rollout"
        return "no token at all" if not sight.tokens and not self.bare else ""

    def findings(self, sight: Sight) -> list[Finding]:
        """Ask it."""
        return [Finding(self.name, *said) for said in self.function(sight)]


def share(part: Any, whole: Any) -> str:
    """Return ``part`` of ``whole`` in words."""
    part, whole = int(part), int(whole)
    return f"{part} of {whole} ({100 * part / max(whole, 1):.3g} %)"
