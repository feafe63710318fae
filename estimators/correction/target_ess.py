"""Weights of a wanted effective sample size: as much correction as the noise that one is willing to pay for."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ...batch import Ranks, Sequences
from ...numerics import accumulator, safe_divide
from ...registry import Max, PerToken, Report, correction
from ...registry.hyper import LogRatioBound
from .levels import Over, Weight, log_weight

_ROUNDS = 40


@correction(
    scope="step",
    claims=(
        "corrects-direction",
        "neutral-at-agreement",
    ),
    deviates={"referenced": "No paper or framework is known that has it."},
)
def target_ess(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    fraction: Annotated[float, Field(gt=0, le=1), "effective sample size that the weights must leave, as a share of the samples"] = 0.9,
    by: Annotated[Literal["temper", "cap"], "what is searched for: the power of the ratios, or their cap"] = "temper",
    level: Over = "token",
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[Weight, Report]:
    r"""Choose the power, or the cap, of the ratios by their effective sample size; ``truncated-is`` takes a fixed cap whatever it does.

    .. math:: w_t = e^{a D_t} \ (\text{temper}) \quad\text{or}\quad \min(e^{D_t}, c) \ (\text{cap}), \qquad
        \frac{(\sum w)^2}{n \sum w^2} \ge fraction

    ``[N]``, without unit; :math:`D_t` at its ``level`` as in ``truncated-is``. The largest :math:`a \in [0, 1]` or the largest :math:`c`
    that reaches the fraction is found by bisection, over all tokens of the step and all ranks, or over their sequences where the level
    is the sequence's. Samples that suffice keep their full weights. A low cap makes all weights small: put ``batch-normalise`` after it.
    Nothing is dropped. A token that the sampler did not score has :math:`D_t = 0`; an empty sequence does not count. Level ``segment``
    without ``turns`` raises ``ColumnError``.
    """
    log_w = log_weight(old_log_prob, rollout_log_prob, level, sequences, turns, log_ratio_bound)
    wide = log_w.to(accumulator(log_w))
    mass = (
        sequences.spread(1 / sequences.lengths.to(wide.dtype).clamp(min=1)) if level in ("geometric", "sequence") else torch.ones_like(wide)
    )
    ranks = sequences.ranks
    low, high = -_largest(-wide, ranks), _largest(wide, ranks)

    def shaped(x: Tensor, knob: Tensor) -> Tensor:
        return knob * x if by == "temper" else torch.minimum(x, knob)

    def size(knob: Tensor) -> Tensor:
        w = (shaped(wide, knob) - shaped(high, knob)).exp()  # a common factor changes nothing, and so nothing overflows
        first, second, count = ranks.sum(torch.stack([(mass * w).sum(), (mass * w * w).sum(), mass.sum()])).unbind()
        return safe_divide(first * first, second * count)

    good, bad = (torch.zeros_like(high), torch.ones_like(high)) if by == "temper" else (low, high)
    good = torch.where(size(bad) >= fraction, bad, good)
    for _ in range(_ROUNDS):
        middle = (good + bad) / 2
        enough = size(middle) >= fraction
        good, bad = torch.where(enough, middle, good), torch.where(enough, bad, middle)
    chosen = good if by == "temper" else good.exp()
    return (shaped(wide, good).exp().to(log_w.dtype), None), {"ess": Max(size(good)), f"ess_{by}": Max(chosen)}


def _largest(x: Tensor, ranks: Ranks) -> Tensor:
    """Return the largest of all ranks' numbers; 0 where there are none."""
    peak = ranks.max(torch.cat([x, x.new_full((1,), float("-inf"))]).amax())
    return torch.where(peak == float("-inf"), 0.0, peak)
