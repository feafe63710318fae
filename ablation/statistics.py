"""What may be said of a few runs: interquartile means, bootstrap intervals, probabilities of improvement, paired tests.

A contestant's scores are ``{stratum: array of one score per seed}``; with one task there is one stratum. Intervals are stratified: seeds are
resampled within their stratum (arXiv:2108.13264).
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .student import two_sided

Array = NDArray[np.float64]
Scores = Mapping[str, Array]
RESAMPLES = 4000
LEVEL = 0.95


def iqm(values: Array, axis: int = -1) -> Array:
    """Return the mean of the middle half along an axis: a quarter, rounded down, of the values is left out at each end."""
    ordered = np.sort(values, axis=axis)
    cut = values.shape[axis] // 4
    return np.asarray(np.take(ordered, range(cut, values.shape[axis] - cut), axis=axis).mean(axis=axis))


def resampled(scores: Sequence[Array], generator: np.random.Generator, n: int = RESAMPLES) -> list[Array]:
    """Return ``[n, seeds]`` draws with replacement for each stratum."""
    return [values[generator.integers(0, len(values), (n, len(values)))] for values in scores]


def interval(draws: Array) -> tuple[float, float]:
    """Return the middle 95 % of a statistic's draws."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def iqm_with_interval(scores: Scores, seed: int = 0) -> tuple[float, float, float]:
    """Return the interquartile mean over all runs of all strata, and its 95 % stratified bootstrap interval."""
    strata = [scores[s] for s in sorted(scores)]
    draws = np.concatenate(resampled(strata, np.random.default_rng(seed)), axis=1)
    return float(iqm(np.concatenate(strata))), *interval(iqm(draws))


def improvement(a: Array, b: Array) -> float:
    """Return the probability that a run of ``a`` scores above one of ``b``, a tie counting half: Mann and Whitney's U over ``n_a n_b``."""
    x, y = a[..., :, None], b[..., None, :]
    return float(np.mean((x > y) + 0.5 * (x == y)))


def improvement_with_interval(a: Scores, b: Scores, seed: int = 0) -> tuple[float, float, float]:
    """Return the probability of improvement, the mean over strata, with its stratified bootstrap interval."""
    shared = sorted(set(a) & set(b))
    generator = np.random.default_rng(seed)
    per: list[Array] = []
    for s in shared:
        (x,), (y,) = resampled([a[s]], generator), resampled([b[s]], generator)
        wins = (x[:, :, None] > y[:, None, :]) + 0.5 * (x[:, :, None] == y[:, None, :])
        per.append(wins.mean(axis=(1, 2)))
    point = float(np.mean([improvement(a[s], b[s]) for s in shared]))
    return point, *interval(np.mean(per, axis=0))


def paired(differences: Sequence[Array]) -> tuple[float, float, float]:
    r"""Return mean, standard error and p-value of differences paired by seed within strata; unlike a t-test on all, strata may have means of their own.

    .. math:: \bar d = \tfrac1S \sum_s \bar d_s, \quad \mathrm{se}^2 = \tfrac{1}{S^2} \sum_s \hat\sigma^2 / n_s

    with the variance pooled over strata and ``sum(n_s - 1)`` degrees of freedom; one stratum is the paired t-test. Without a degree of
    freedom the p-value is 1: nothing is known of the noise.
    """
    kept = [d for d in differences if len(d)]
    if not kept:
        return math.nan, math.nan, 1.0
    mean = float(np.mean([d.mean() for d in kept]))
    free = sum(len(d) - 1 for d in kept)
    if free == 0:
        return mean, math.inf, 1.0
    variance = sum(float(((d - d.mean()) ** 2).sum()) for d in kept) / free
    error = math.sqrt(sum(variance / len(d) for d in kept)) / len(kept)
    if error <= 1e-12 * max(1.0, abs(mean)):
        return mean, 0.0, 1.0 if abs(mean) <= 1e-12 else 0.0
    return mean, error, two_sided(mean / error, free)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number by Holm's method: compared with 0.05, one false alarm in twenty ablations, not comparisons."""
    n, least, adjusted = len(p_values), 0.0, [1.0] * len(p_values)
    for rank, i in enumerate(sorted(range(n), key=lambda i: p_values[i])):
        least = max(least, min(1.0, (n - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted


def seeds_needed(mean: float, error: float, seeds: int) -> int | None:
    """Return about how many seeds would show a difference of this size four times in five; None: it is 0, or its noise is unknown."""
    if not mean or not math.isfinite(error):
        return None
    deviation = error * math.sqrt(seeds)
    return max(2, math.ceil(((1.96 + 0.84) * deviation / mean) ** 2 + 2))


def final(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the mean of the last tenth of what was measured, at least of one value."""
    n = max(1, len(values) // 10)
    return float(np.mean(values[-n:])) if len(values) else math.nan


def area(steps: Sequence[int], values: Sequence[float]) -> float:
    """Return the mean height of the curve between the first step and the last, in the unit of the score."""
    if len(values) < 2:
        return float(values[0]) if len(values) else math.nan
    return float(np.trapezoid(values, steps) / (steps[-1] - steps[0]))
