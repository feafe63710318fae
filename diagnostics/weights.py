r"""The effective weight of a token, :math:`g_t = -\frac{\partial L_{policy} / \partial \log \pi_t}{A_t w_t}`: what is left of its advantage.

1: the token is pushed as its advantage says (plain policy gradient); 0: it was clipped, masked or dropped; below 0: it is pushed the other
way. Loss values of two modes cannot be compared; these can. Kept as sums over buckets of tokens, so that micro-batches add up exactly.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..registry import Level
from .running import Share

BINS = 24
"""Buckets of position and of length, each twice as wide as the one before: 0, 1, 2-3, 4-7, ..."""
EDGES = 2 ** torch.arange(BINS - 1)
SIGNS = ("A > 0", "A < 0")


@dataclass(frozen=True)
class Spread:
    """The effective weights of some tokens."""

    count: float
    total: float
    squares: float
    zeroed: float
    flipped: float

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.total / self.count

    @property
    def ess(self) -> float:
        """How many equally weighted tokens carry as much, as a share of all; 0 where none carries anything."""
        return self.total**2 / self.squares / self.count if self.squares else 0.0

    @property
    def zeroed_share(self) -> float:
        """Which share has no gradient."""
        return self.zeroed / self.count

    @property
    def flipped_share(self) -> float:
        """Which share is pushed against its advantage."""
        return self.flipped / self.count


@dataclass(frozen=True)
class Buckets:
    """Sums over tokens with an advantage, by the sign of the advantage, the place in the sequence and the length of the sequence."""

    by_sign: Tensor
    """``[2, 5]``: count, sum, sum of squares, zeroed, flipped."""
    by_position: Tensor
    """``[BINS, 5]``."""
    by_length: Tensor
    """``[BINS, 5]``."""

    def __add__(self, other: "Buckets") -> "Buckets":
        """Return the sums over both."""
        return Buckets(self.by_sign + other.by_sign, self.by_position + other.by_position, self.by_length + other.by_length)

    @property
    def all(self) -> Spread | None:
        """All tokens together; None where no token has an advantage."""
        return _spread(self.by_sign.sum(0))

    def rows(self, by: str) -> Iterator[tuple[str, Spread]]:
        """Yield the buckets ``by`` ``"sign"``, ``"position"`` or ``"length"`` that hold a token, with what they are called."""
        table = {"sign": self.by_sign, "position": self.by_position, "length": self.by_length}[by]
        for i, row in enumerate(table):
            found = _spread(row)
            if found is not None:
                yield SIGNS[i] if by == "sign" else _range(i), found


def effective_weights(batch: Batch, policy: Share) -> Buckets:
    """Return the effective weights of a batch's tokens under its policy term, before its coefficient.

    Tokens whose advantage or weight is 0 say nothing and are left out; those that a correction dropped count as zeroed.
    """
    a, w = (x.double() for x in (_advantages(batch), policy.side.batch.weights[policy.term.aggregation]))
    if batch.kept is not None:
        w = w.new_ones(a.shape).index_copy(0, policy.where, w)
    slope = policy.gradients["log_prob"] / (policy.coefficient if float(policy.coefficient) else 1.0)
    pushes = a * w
    live = pushes != 0
    g = torch.where(live & (slope != 0), -slope / torch.where(live, pushes, 1.0), 0.0)
    facts = torch.stack([live.to(g.dtype), g, g * g, (live & (g == 0)).to(g.dtype), (g < 0).to(g.dtype)], 1)
    places, lengths = batch.sequences.places, batch.sequences.spread(batch.sequences.lengths)
    edges = EDGES.to(a.device)
    found = ((a < 0).long(), 2), *((torch.bucketize(x, edges, right=True), BINS) for x in (places, lengths))
    return Buckets(*(facts.new_zeros(size, 5).index_add(0, bucket, facts) for bucket, size in found))


def _advantages(batch: Batch) -> Tensor:
    if "advantages" not in batch:
        return torch.zeros(batch.sequences.index.shape[0], device=batch.rows.device)
    return batch.column("advantages", Level.TOKEN)


def _range(i: int) -> str:
    if i < 2:
        return str(i)
    low, high = 2 ** (i - 1), 2**i - 1
    return f"{low}+" if i == BINS - 1 else f"{low}-{high}"


def _spread(row: Tensor) -> Spread | None:
    count, total, squares, zeroed, flipped = row.tolist()
    return Spread(count, total, squares, zeroed, flipped) if count and not math.isnan(count) else None
