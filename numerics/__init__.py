"""Primitives that algorithms, estimators and corrections share: pure functions of tensors, each with its gradient thought through."""

from .bernoulli import binary_kl, clamped_binary_kl, probability_shift
from .bins import bin_centres, bin_points, cross_entropy, decoded, hl_gauss, two_hot
from .choose import log_choose
from .divergence import adaptive_kl, forward_kl, jensen_shannon, reverse_kl, skewed_forward_kl, skewed_reverse_kl
from .mismatch import mismatch
from .noise import hashed_uniform
from .quantile import quantile, segment_quantile
from .ratio import bounded, bounded_log_ratio, capped, clipped_surrogate, scored
from .rows import Read, Slopes, Softening, read_rows, write_slopes
from .runs import run_mean
from .scan import scan
from .score import score_loss
from .straight_through import score_weight, sloped, straight_through
from .subset import renormalised, subset_jensen_shannon, weighted_gap, with_tail
from .sums import accumulator, safe_divide, total
from .vocabulary import entropy_of, log_prob_of, sum_pi_squared_of, widened

__all__ = [
    "Read",
    "Slopes",
    "Softening",
    "accumulator",
    "adaptive_kl",
    "bin_centres",
    "bin_points",
    "binary_kl",
    "bounded",
    "bounded_log_ratio",
    "capped",
    "clamped_binary_kl",
    "clipped_surrogate",
    "cross_entropy",
    "decoded",
    "entropy_of",
    "forward_kl",
    "hashed_uniform",
    "hl_gauss",
    "jensen_shannon",
    "log_choose",
    "log_prob_of",
    "mismatch",
    "probability_shift",
    "quantile",
    "read_rows",
    "renormalised",
    "reverse_kl",
    "run_mean",
    "safe_divide",
    "scan",
    "score_loss",
    "score_weight",
    "scored",
    "segment_quantile",
    "skewed_forward_kl",
    "skewed_reverse_kl",
    "sloped",
    "straight_through",
    "subset_jensen_shannon",
    "sum_pi_squared_of",
    "total",
    "two_hot",
    "weighted_gap",
    "widened",
    "with_tail",
    "write_slopes",
]
