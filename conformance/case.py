"""A small batch to try a component on: drawn from a seed or by hypothesis, cut, reordered and printed."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ..registry import Column, Level, Vocabulary

WORDS = 5
"""How many words a vocabulary has here."""
WIDE = {"component_rewards": 2, "turn_rewards": 3, "frozen_rewards": 4, "teacher_topk_log_prob": 3, "teacher_topk_ids": 3}
_RANGES: Mapping[str, tuple[float, float]] = {
    "entropy": (0.1, 2.0), "sum_pi_squared": (0.1, 0.9), "noise": (0.0, 0.99), "correction": (0.5, 1.5), "advantages": (-2.0, 2.0),
    "log_z": (-1.0, 1.0), "logits": (-2.0, 2.0), "ref_logits": (-2.0, 2.0), "teacher_logits": (-2.0, 2.0), "value_logits": (-2.0, 2.0),
}  # fmt: skip
_WHOLE: Mapping[str, tuple[int, int]] = {
    "policy_version": (0, 3), "token_ids": (0, 2), "state_ids": (0, 1), "prompt_lengths": (1, 5), "demonstration": (0, 1),
    "truncated": (0, 1),
}  # fmt: skip


class Source(Protocol):
    """Where the numbers of a case come from."""

    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the lengths of the sequences and the group of each."""

    def reals(self, n: int, low: float, high: float) -> list[float]:
        """Return ``n`` numbers between two others."""

    def integers(self, n: int, low: int, high: int) -> list[int]:
        """Return ``n`` integers between two others, both included."""


class Seeded:
    """The same numbers for the same seed, on any machine."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(f"lossary {seed}")

    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return about seven sequences in three groups: one is empty, one has a single token."""
        n = self.random.randint(6, 8)
        lengths = [self.random.randint(1, 4) for _ in range(n)]
        lengths[0], lengths[n // 2] = 1, 0
        groups = [i % 3 for i in range(n)]
        self.random.shuffle(groups)
        return tuple(lengths), tuple(groups)

    def reals(self, n: int, low: float, high: float) -> list[float]:
        """Return numbers that no threshold is likely to be equal to."""
        return [self.random.uniform(low, high) for _ in range(n)]

    def integers(self, n: int, low: int, high: int) -> list[int]:
        """Return integers."""
        return [self.random.randint(low, high) for _ in range(n)]


class Long(Seeded):
    """Three sequences, two of which are longer than any threshold that somebody may have put in for small tests."""

    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return 173 tokens in two groups."""
        return (40, 130, 3), (0, 1, 0)


@dataclass(frozen=True)
class Case:
    """Sequences end to end, the group of each, and the columns that a component names."""

    lengths: tuple[int, ...]
    groups: tuple[int, ...]
    columns: Mapping[str, Tensor]
    levels: Mapping[str, Level]
    """``VOCAB`` for what has one value per word."""
    optional: bool = True
    """Whether optional columns are there."""

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(self.lengths)

    @property
    def index(self) -> Tensor:
        """``[N]``: the sequence of each token."""
        return torch.repeat_interleave(torch.arange(len(self.lengths)), torch.tensor(self.lengths, dtype=torch.long))

    @property
    def last(self) -> Tensor:
        """``[N]``: whether a token ends its sequence."""
        places = [p == n - 1 for n in self.lengths for p in range(n)]
        return torch.tensor(places, dtype=torch.bool)

    def having(self, **columns: Tensor | None) -> "Case":
        """Return the case with some of its columns replaced; those that it lacks stay away."""
        return replace(self, columns={**self.columns, **{n: x for n, x in columns.items() if n in self.columns and x is not None}})

    def mapped(self, change: Callable[[str, Tensor], Tensor]) -> "Case":
        """Return the case with every real column changed."""
        return replace(self, columns={n: change(n, x) if x.is_floating_point() else x for n, x in self.columns.items()})

    def _picked(self, lengths: Iterable[int], sequences: Tensor, tokens: Tensor) -> "Case":
        groups = tuple(self.groups[i] for i in sequences.tolist())
        columns = {n: x[sequences if self.levels[n] is Level.SEQUENCE else tokens] for n, x in self.columns.items()}
        return replace(self, lengths=tuple(lengths), groups=groups, columns=columns)

    def places_of(self, sequences: Sequence[int]) -> Tensor:
        """Return where the tokens of some sequences lie."""
        starts = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        return torch.tensor([t for i in sequences for t in range(starts[i], starts[i] + self.lengths[i])], dtype=torch.long)

    def take(self, sequences: Sequence[int]) -> "Case":
        """Return some sequences in the order given."""
        return self._picked(
            (self.lengths[i] for i in sequences), torch.tensor(list(sequences), dtype=torch.long), self.places_of(sequences)
        )

    def cut(self, a: int, b: int) -> "Case":
        """Return the tokens from ``a`` up to ``b``, wherever sequences begin."""
        index = self.index[a:b].tolist()
        there = list(dict.fromkeys(index))
        return self._picked((index.count(i) for i in there), torch.tensor(there, dtype=torch.long), torch.arange(a, b))

    def members(self) -> list[list[int]]:
        """Return the sequences of each group."""
        return [[i for i, g in enumerate(self.groups) if g == group] for group in sorted(set(self.groups))]

    def described(self, names: Iterable[str]) -> list[str]:
        """Return what to print: one line for the shape and one for each column."""
        many = len(self.lengths)
        counts = " ".join(map(str, self.lengths))
        shape = f"{many} sequence{'s' * (many != 1)} of {counts or 'no'} token{'s' * (self.lengths != (1,))}"
        if many > 1:
            shape += f", in groups {' '.join(map(str, self.groups))}"
        shown = [n for n in names if n in self.columns]
        wide = max((len(n) for n in shown), default=0)
        return [shape, *(f"{n:{wide}}  {self._line(n)}" for n in shown)]

    def _line(self, name: str) -> str:
        x = self.columns[name]
        if x.dim() > 1:
            return _joined([f"[{' '.join(map(_short, row))}]" for row in x.tolist()])
        values = list(map(_short, x.tolist()))
        if self.levels[name] is Level.SEQUENCE:
            return _joined(values)
        ends = torch.tensor([0, *self.lengths]).cumsum(0).tolist()
        return " | ".join(_joined(values[a:b]) for a, b in pairwise(ends))


def _short(x: float) -> str:
    return f"{x:.4g}"


def _joined(words: list[str], most: int = 12) -> str:
    return " ".join(words[:most]) + (f" ... ({len(words)} in all)" if len(words) > most else "")


def drawn(source: Source, names: Iterable[str], fields: Vocabulary, *, optional: bool = True) -> Case:
    """Return a case with a plausible value for every column named; log-probabilities lie about each other."""
    lengths, groups = source.shape()
    n, s = sum(lengths), len(lengths)
    base = torch.tensor(source.reals(n, -3.0, -1.0), dtype=torch.float64)
    places = torch.tensor([p for length in lengths for p in range(length)], dtype=torch.long)
    columns: dict[str, Tensor] = {}
    levels: dict[str, Level] = {}
    words: dict[str, Tensor] = {}
    for name in names:
        field = fields[name]
        if field.level is Level.SPECIAL:
            continue
        size = s if field.level is Level.SEQUENCE else n
        levels[name] = field.level
        if name == "log_prob":
            columns[name] = base
        elif name == "group_ids":
            columns[name] = torch.tensor(groups, dtype=torch.long)
        elif name == "sequence_ids":
            columns[name] = torch.arange(s) + 100
        elif name in ("positions", "turns"):
            columns[name] = places if name == "positions" else places // 2
        elif name == "rollout_lengths":
            columns[name] = torch.tensor(lengths, dtype=torch.long) + torch.tensor(source.integers(s, 0, 2), dtype=torch.long)
        elif name in ("teacher_topk_log_prob", "teacher_topk_ids"):
            if not words:
                logits = torch.tensor(source.reals(n * WORDS, -2.0, 2.0), dtype=torch.float64).view(n, WORDS)
                found = logits.log_softmax(-1).topk(WIDE[name])
                words = {"teacher_topk_log_prob": found.values, "teacher_topk_ids": found.indices}
            columns[name] = words[name]
        else:
            columns[name] = _plain(source, field, size, base)
    return Case(lengths, groups, columns, levels, optional)


def _plain(source: Source, field: Column, size: int, base: Tensor) -> Tensor:
    """Return a column of which only its declaration is known."""
    name = field.name
    wide = WORDS if field.level is Level.VOCAB else WIDE.get(name, 3) if field.wide else 1
    if field.integer or name in _WHOLE:
        made = torch.tensor(source.integers(size * wide, *_WHOLE.get(name, (0, 2))), dtype=torch.long)
        made = made if field.integer else made.to(torch.float64)
    elif field.unit == "nats" and name not in _RANGES and field.level is Level.TOKEN and not field.wide:
        return base + torch.tensor(source.reals(size, -0.9, 0.9), dtype=torch.float64)
    else:
        made = torch.tensor(source.reals(size * wide, *_RANGES.get(name, (-1.0, 1.0))), dtype=torch.float64)
    return made.view(size, wide) if wide > 1 or field.wide else made
