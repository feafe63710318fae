"""Statistics of ablations: by hand, and against scipy where it is installed."""

import math

import numpy as np
import pytest

from lossary.ablation.statistics import (
    area,
    final,
    holm,
    improvement,
    improvement_with_interval,
    iqm,
    iqm_with_interval,
    paired,
    seeds_needed,
)
from lossary.ablation.student import incomplete_beta, two_sided

RANDOM = np.random.default_rng(3)


def scipy_stats():
    return pytest.importorskip("scipy.stats", reason="scipy comes with the dev extra")


def test_iqm_by_hand():
    assert iqm(np.array([100.0, 1, 2, 3, -50, 4, 5, 6])) == 3.5  # -50, 1 and 6, 100 are left out
    assert iqm(np.array([1.0, 2, 6])) == 3.0  # of three a quarter is nothing
    assert iqm(np.array([[1.0, 2, 3, 10], [0, 0, 0, 4]])).tolist() == [2.5, 0.0]


@pytest.mark.parametrize("n", range(1, 20))
def test_iqm_is_scipys_trimmed_mean(n):
    values = RANDOM.normal(size=n)
    assert iqm(values) == pytest.approx(scipy_stats().trim_mean(values, 0.25), abs=1e-14)


def test_improvement_by_hand():
    assert improvement(np.array([1.0, 2]), np.array([0.0, 0])) == 1.0
    assert improvement(np.array([1.0, 2]), np.array([1.0, 3])) == pytest.approx((0.5 + 1) / 4)


@pytest.mark.parametrize("ties", [False, True])
def test_improvement_is_mann_whitneys_u(ties):
    a, b = RANDOM.normal(0.3, 1, 7), RANDOM.normal(size=5)
    a, b = (np.round(a), np.round(b)) if ties else (a, b)
    assert improvement(a, b) == pytest.approx(scipy_stats().mannwhitneyu(a, b).statistic / 35, abs=1e-14)


@pytest.mark.parametrize(
    ("a", "b", "x"), [(0.5, 0.5, 0.3), (1, 0.5, 0.9), (4.5, 0.5, 0.999), (20, 0.5, 0.2), (0.5, 3, 1e-9), (100, 0.5, 0.99)]
)
def test_incomplete_beta(a, b, x):
    special = pytest.importorskip("scipy.special", reason="scipy comes with the dev extra")
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-12)


def test_student_by_hand():
    """With one degree of freedom it is Cauchy's distribution, with two it has a closed form."""
    for t in (0.1, 1.0, 12.7):
        assert two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-12)
        assert two_sided(-t, 2) == pytest.approx(1 - t / math.sqrt(2 + t * t), rel=1e-12)
    assert two_sided(0.0, 5) == 1.0


@pytest.mark.parametrize("n", [2, 3, 5, 40])
def test_paired_is_scipys_on_one_stratum(n):
    a, b = RANDOM.normal(0.4, 1, n), RANDOM.normal(size=n)
    mean, error, p = paired([a - b])
    assert mean == pytest.approx((a - b).mean())
    assert error == pytest.approx((a - b).std(ddof=1) / math.sqrt(n))
    assert p == pytest.approx(scipy_stats().ttest_rel(a, b).pvalue, rel=1e-10)


def test_strata_may_have_means_of_their_own():
    """Two tasks, each with a steady difference: as one sample they would look noisy."""
    apart = [np.array([0.10, 0.11, 0.09]), np.array([0.40, 0.41, 0.39])]
    mean, error, p = paired(apart)
    assert mean == pytest.approx(0.25)
    assert error == pytest.approx(math.sqrt(2 * 1e-4 / 3) / 2)
    assert p < 1e-4 < 0.01 < paired([np.concatenate(apart)])[2]


def test_what_is_not_known_is_not_claimed():
    assert paired([np.array([0.5])])[2] == 1.0
    assert paired([])[2] == 1.0
    assert paired([np.zeros(3)])[1:] == (0.0, 1.0)
    assert paired([np.full(3, 0.2)])[1:] == (0.0, 0.0)
    assert seeds_needed(0.0, 0.1, 3) is None
    assert seeds_needed(0.1, math.inf, 1) is None
    assert 30 < seeds_needed(0.1, 0.2 / math.sqrt(4), 4) < 40  # half a deviation needs about 32 pairs


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_bootstrap_agrees_with_scipys():
    values = RANDOM.normal(size=12)
    point, low, high = iqm_with_interval({"": values})
    theirs = (
        scipy_stats()
        .bootstrap((values,), lambda x, axis: scipy_stats().trim_mean(x, 0.25, axis=axis), n_resamples=9999, method="percentile", rng=1)
        .confidence_interval
    )
    assert low < point < high
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.08)


def test_strata_are_resampled_apart():
    """Constant within a stratum, so nothing can vary, however far the strata lie apart."""
    scores = {"easy": np.full(3, 0.9), "hard": np.full(3, 0.1)}
    assert iqm_with_interval(scores) == pytest.approx((0.5, 0.5, 0.5))
    assert improvement_with_interval(scores, {s: v - 0.05 for s, v in scores.items()}) == (1.0, 1.0, 1.0)


def test_the_interval_holds_the_truth_about_as_often_as_it_says():
    random = np.random.default_rng(0)
    hits = 0
    for i in range(60):
        _, low, high = iqm_with_interval({"a": random.normal(size=20), "b": random.normal(size=20)}, seed=i)
        hits += low <= 0 <= high
    assert hits >= 51


def test_scores_of_a_curve():
    assert final([0, 1, 2], [0.0, 0.5, 1.0]) == 1.0
    assert final(list(range(20)), [0.0] * 18 + [0.4, 0.6]) == 0.5
    assert area([0, 2, 4], [0.0, 1.0, 1.0]) == 0.75
    assert area([3], [0.5]) == 0.5
    assert math.isnan(final([], []))
    assert math.isnan(area([], []))
