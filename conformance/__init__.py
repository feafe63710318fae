"""The public kit that checks any component, ours or a stranger's, against what it and its kind promise."""

from .check import Broken, Check, NotExamined
from .kit import checks_for

__all__ = ["Broken", "Check", "NotExamined", "checks_for"]
