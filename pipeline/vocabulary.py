"""Terms over the whole vocabulary: run in chunks of tokens and recomputed in the backward pass, so that ``[N, V]`` never exists."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..batch.layout import Layout
from ..numerics import Softening
from ..registry import FIELDS, ColumnError, Level
from .bound import SPECIAL, Bound, View
from .metrics import Measure, added, measure

VOCAB = tuple(name for name, c in FIELDS.items() if c.level is Level.VOCAB)
POLICIES = ("logits", "ref_logits", "teacher_logits")
"""Names of what has one value per token and word."""


@dataclass(frozen=True)
class Logits:
    """Logits that are not there yet: hidden states and the head that turns a chunk of them into ``[n, V]`` when a term asks.

    ``hidden`` is ``[N, H]`` packed, or in the batch's padded or nested shape; ``weight`` is ``[V, H]``; ``scale`` multiplies
    the logits (1 / temperature) after ``softcap``, if there is one, has bent them: ``softcap * tanh(logits / softcap)``. Gradients reach
    hidden states, weight and bias. A tensor of logits is accepted wherever this is. Parts that do not fit together raise ``ColumnError``.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def __post_init__(self) -> None:
        """Look at the parts before they meet, for afterwards nobody knows which was wrong."""
        for part, x in (("hidden", self.hidden), ("weight", self.weight), ("bias", self.bias)):
            if not isinstance(x, Tensor) and not (part == "bias" and x is None):
                raise ColumnError(f"Logits: {part} is {type(x).__name__}; expected a tensor.")
        if not isinstance(self.scale, (int, float)):
            raise ColumnError(f"Logits: scale is {self.scale!r}; expected a number.")
        width, dtype = self.hidden.shape[-1], self.hidden.dtype
        if self.weight.dim() != 2 or self.weight.shape[1] != width or self.weight.dtype != dtype:
            said = f"{self.weight.dtype} {list(self.weight.shape)}"
            raise ColumnError(f"Logits: weight is {said}; expected {dtype} [words, {width}], to fit the hidden states.")
        if self.bias is not None and (self.bias.shape != self.weight.shape[:1] or self.bias.dtype != dtype):
            said = f"{self.bias.dtype} {list(self.bias.shape)}"
            raise ColumnError(f"Logits: bias is {said}; expected {dtype} [{self.weight.shape[0]}], one number per word.")

    def rows(self, x: Tensor) -> Tensor:
        """Return the logits of some hidden states, in float32 or wider."""
        return Softening(self.scale, self.softcap)(torch.nn.functional.linear(x, self.weight, self.bias))


@dataclass(frozen=True)
class Rows:
    """``[N, ...]`` of which a chunk becomes logits: the logits themselves, or hidden states with their head."""

    x: Tensor
    head: Logits | None = None
    keep: Tensor | None = None
    """``[N]``: rows that were dropped are read as zeros: not even a NaN of theirs reaches anything."""

    @classmethod
    def packed(cls, given: "Tensor | Logits", layout: Layout, name: str) -> "Rows":
        """Bring what ``loss`` was given into the batch's order."""
        if not isinstance(given, (Tensor, Logits)):
            raise ColumnError(f"{name} is {type(given).__name__}; expected a tensor of logits or Logits(hidden, weight).")
        x = given if isinstance(given, Tensor) else given.hidden
        packed = layout.pack_rows(x, name)
        if packed.dim() != 2 or not packed.is_floating_point():
            raise ColumnError(f"{name} is {packed.dtype} {list(packed.shape)} after packing; expected real numbers [tokens, words].")
        return cls(packed, None if isinstance(given, Tensor) else given)

    @property
    def words(self) -> int:
        """How many there are to a row."""
        return self.x.shape[1] if self.head is None else self.head.weight.shape[0]

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows."""
        return any(x is not None and x.requires_grad for x in self.leaves)

    @property
    def leaves(self) -> tuple[Tensor | None, ...]:
        """The tensors that a gradient may reach."""
        return (self.x,) if self.head is None else (self.x, self.head.weight, self.head.bias)

    def select(self, tokens: Tensor) -> "Rows":
        """Return some rows."""
        return replace(self, x=self.x.index_select(0, tokens))

    def logits(self, a: int, b: int) -> Tensor:
        """Return the logits of a chunk."""
        x = self.x[a:b]
        if self.keep is not None:
            x = torch.where(self.keep[a:b, None], x, 0.0)
        if self.head is not None:
            return self.head.rows(x)
        return x if x.dtype in (torch.float32, torch.float64) else x.float()


def over_words(bound: Bound) -> bool:
    """Whether a component reads logits."""
    return not bound.reads.isdisjoint(VOCAB)


def in_chunks(bound: Bound, view: View, rows: Mapping[str, Rows], chunk: int | None) -> tuple[Tensor, dict[str, Measure]]:
    """Run a component over chunks of tokens; nothing of size ``V`` outlives its chunk, also not for the backward pass.

    Without ``chunk`` this is one already: everything is there and is kept as long as autograd wants it.
    """
    tokens = view.sequences.index.shape[0]
    columns: dict[str, Any] = {}
    for name, level, optional in bound.levels:
        if name not in VOCAB:
            columns[name] = view.get(name, level, optional, bound.who)
        elif name not in rows and not optional:
            raise ColumnError(f"{bound.who} needs {name!r}: loss(micro, {name}=logits) or loss(micro, {name}=Logits(hidden, weight)).")

    sizes = {name: rows[name].words for name, _, _ in bound.levels if name in rows and name in POLICIES}
    if len(set(sizes.values())) > 1:
        (one, n), (other, m) = list(sizes.items())[:2]
        raise ColumnError(f"{bound.who}: {one} has {n} words and {other} {m}; both must be over the same vocabulary.")

    def run(a: int, b: int) -> tuple[Tensor, dict[str, Measure]]:
        def of(name: str) -> Any:
            if name in VOCAB:
                return rows[name].logits(a, b) if name in rows else None
            x = columns[name]
            return x[a:b] if isinstance(x, Tensor) and name not in SPECIAL else x

        result, report = bound.split(bound.call([of(name) for name, _, _ in bound.levels]))
        if not isinstance(result, Tensor) or result.shape != (b - a,):
            what = list(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise ColumnError(f"{bound.who} returned {what} for a chunk of {b - a} tokens; expected one value per token.")
        return result, {name: measure(x, bound.who) for name, x in report.items()}

    if chunk is None:
        return run(0, tokens)
    again: Callable[..., Any] = run
    if torch.is_grad_enabled() and any(r.requires_grad for r in rows.values()):

        def again(a: int, b: int) -> Any:
            return checkpoint(run, a, b, use_reentrant=False, preserve_rng_state=False)

    parts = [again(a, min(a + chunk, tokens)) for a in range(0, tokens, chunk)] or [run(0, 0)]
    return torch.cat([x for x, _ in parts]), added([report for _, report in parts])
