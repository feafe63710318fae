"""What corrections share: how far trainer and sampler are apart token by token, and that distance at wider levels."""

import math
from typing import Annotated, Literal

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import bounded, run_mean
from ...registry import ColumnError, PerToken

Over = Annotated[
    Literal["token", "segment", "geometric", "sequence"],
    "whose ratio: the token's, the mean over its turn or its sequence, or the product over its sequence",
]
"""Level of a ratio; both means are geometric."""
Aggregation = Annotated[
    Literal["token", "segment", "mean", "sum", "max"],
    "what is judged: each token's own, the mean over its turn, or mean, sum or maximum over its sequence",
]
"""How a statistic of tokens is judged."""
Weight = tuple[PerToken, None]
"""What a correction returns that weighs each token and drops none."""
Keep = tuple[None, PerToken]
"""What one returns that drops tokens and weighs none."""
Both = tuple[PerToken, PerToken]
"""``(weight, keep)``: what lies outside goes, and the rest is weighed."""

_AS: dict[Over, Aggregation] = {"token": "token", "segment": "segment", "geometric": "mean", "sequence": "sum"}


def distance(old_log_prob: Tensor, rollout_log_prob: Tensor) -> Tensor:
    """``[N]``: trainer less sampler [nats]; 0 where the sampler did not score the token (NaN)."""
    return torch.where(rollout_log_prob.isnan(), 0.0, old_log_prob - rollout_log_prob)


def gathered(x: Tensor, aggregation: Aggregation, sequences: Sequences, turns: Tensor | None) -> Tensor:
    """``[N] -> [N]``: give each token what its statistic is judged by; ``segment`` without ``turns`` raises ``ColumnError``."""
    if aggregation == "token":
        return x
    if aggregation == "segment":
        if turns is None:
            raise ColumnError("a correction by segment needs the column 'turns', which the batch does not bring.")
        return run_mean(x, (sequences.places == 0) | (turns != turns.roll(1, 0)))
    over = {"mean": sequences.mean, "sum": sequences.sum, "max": sequences.max}[aggregation]
    return sequences.spread(over(x))


def log_ratio(old_log_prob: Tensor, rollout_log_prob: Tensor, level: Over, sequences: Sequences, turns: Tensor | None) -> Tensor:
    """``[N]``: log of the ratio of trainer to sampler at a level, without a bound."""
    return gathered(distance(old_log_prob, rollout_log_prob), _AS[level], sequences, turns)


def log_weight(
    old_log_prob: Tensor, rollout_log_prob: Tensor, level: Over, sequences: Sequences, turns: Tensor | None, bound: float | None
) -> Tensor:
    """``[N]``: log of the importance weight at a level, clamped to ``+- bound``."""
    return bounded(log_ratio(old_log_prob, rollout_log_prob, level, sequences, turns), bound)


def within(x: Tensor, lower: float | None, upper: float | None) -> Tensor:
    """Return where ``lower <= x <= upper``; None is no bound, bounds that cross raise ``ValueError``."""
    low, high = _ordered(lower, upper)
    return (x >= low) & (x <= high)


def ratio_within(log_ratio: Tensor, lower: float | None, upper: float | None, *, strict: bool = False) -> Tensor:
    """Return where ``lower <= exp(log_ratio) <= upper``, judged by the logarithms: no bound of the exponential hides what is far out.

    ``strict`` excludes the bounds themselves. None is no bound, bounds that cross raise ``ValueError``.
    """
    _ordered(lower, upper)
    low, high = (math.log(b) if b else None for b in (lower, upper))
    keep = within(log_ratio, low, high)
    return keep & (log_ratio != low) & (log_ratio != high) if strict else keep


def _ordered(lower: float | None, upper: float | None) -> tuple[float, float]:
    low, high = float("-inf") if lower is None else lower, float("inf") if upper is None else upper
    if low > high:
        raise ValueError(f"the lower bound {low:g} lies above the upper bound {high:g}, so nothing would be kept.")
    return low, high


def without(bad: Tensor, sequences: Sequences) -> Tensor:
    """``[N]``: keep the tokens of sequences that have no bad token."""
    return sequences.spread(sequences.sum(bad) == 0)
