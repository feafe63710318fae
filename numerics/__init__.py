"""Primitives that algorithms, estimators and corrections share: pure functions of tensors, each with its gradient thought through."""

from .choose import log_choose
from .ratio import bounded, bounded_log_ratio, clipped_surrogate
from .scan import scan
from .straight_through import straight_through
from .sums import accumulator, safe_divide

__all__ = ["accumulator", "bounded", "bounded_log_ratio", "clipped_surrogate", "log_choose", "safe_divide", "scan", "straight_through"]
