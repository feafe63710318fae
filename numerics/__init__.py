"""Primitives that algorithms, estimators and corrections share: pure functions of tensors, each with its gradient thought through."""

from .bernoulli import binary_kl, probability_shift
from .choose import log_choose
from .mismatch import effective_sample_size, mismatch
from .quantile import quantile, segment_quantile
from .ratio import bounded, bounded_log_ratio, capped, clipped_surrogate, scored
from .runs import run_mean
from .scan import scan
from .score import score_loss
from .straight_through import straight_through
from .sums import accumulator, safe_divide

__all__ = [
    "accumulator",
    "binary_kl",
    "bounded",
    "bounded_log_ratio",
    "capped",
    "clipped_surrogate",
    "effective_sample_size",
    "log_choose",
    "mismatch",
    "probability_shift",
    "quantile",
    "run_mean",
    "safe_divide",
    "scan",
    "score_loss",
    "scored",
    "segment_quantile",
    "straight_through",
]
