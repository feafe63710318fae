"""Packed tokens and the ladder token -> sequence -> group. Padding ends at this border."""

from .batch import Batch
from .layout import Layout
from .ranks import ONE_RANK, OneRank, Ranks, SimulatedRanks
from .sequences import Sequences
from .shift import left_shift_packed, left_shift_padded, token_log_probs

__all__ = [
    "ONE_RANK", "Batch", "Layout", "OneRank", "Ranks", "Sequences", "SimulatedRanks", "left_shift_packed", "left_shift_padded",
    "token_log_probs",
]  # fmt: skip
