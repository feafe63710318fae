"""Primitives that algorithms, estimators and corrections share: pure functions of tensors, each with its gradient thought through."""

from .bernoulli import binary_kl, probability_shift
from .choose import log_choose
from .noise import hashed_uniform
from .quantile import quantile, segment_quantile
from .ratio import bounded, bounded_log_ratio, capped, clipped_surrogate, scored
from .scan import scan
from .score import score_loss
from .straight_through import score_weight, straight_through
from .sums import accumulator, safe_divide

__all__ = [
    "accumulator",
    "binary_kl",
    "bounded",
    "bounded_log_ratio",
    "capped",
    "clipped_surrogate",
    "hashed_uniform",
    "log_choose",
    "probability_shift",
    "quantile",
    "safe_divide",
    "scan",
    "score_loss",
    "score_weight",
    "scored",
    "segment_quantile",
    "straight_through",
]
