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
    n, device = batch.sequences.index.shape[0], batch.rows.device
    a = batch.column("advantages", Level.TOKEN).double() if "advantages" in batch else torch.zeros(n, device=device, dtype=torch.float64)
    w = torch.ones(n, dtype=torch.float64, device=device)
    w = w.index_copy(0, policy.where, policy.side.batch.weights[policy.term.aggregation].double())
    slope = policy.gradients["log_prob"].double() / (policy.coefficient if float(policy.coefficient) else 1.0)
    live = (a != 0) & (w != 0)
    g = torch.where(live & (slope != 0), -slope / torch.where(live, a * w, 1.0), 0.0)
    facts = torch.stack([live.double(), g, g * g, (live & (g == 0)).double(), (g < 0).double()], 1)

    def summed(bucket: Tensor, size: int) -> Tensor:
        return facts.new_zeros(size, 5).index_add(0, bucket, torch.where(live[:, None], facts, 0.0))

    places, lengths = batch.sequences.places, batch.sequences.spread(batch.sequences.lengths)
    return Buckets(summed((a < 0).long(), 2), summed(_bin(places), BINS), summed(_bin(lengths), BINS))


def _bin(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.double().clamp(min=1).log2().floor().long() + 1, 0).clamp(max=BINS - 1)


def _range(i: int) -> str:
    if i < 2:
        return str(i)
    low, high = 2 ** (i - 1), 2**i - 1
    return f"{low}+" if i == BINS - 1 else f"{low}-{high}"


def _spread(row: Tensor) -> Spread | None:
    count, total, squares, zeroed, flipped = row.tolist()
    return Spread(count, total, squares, zeroed, flipped) if count and not math.isnan(count) else None
