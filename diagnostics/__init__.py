"""Questions to ask of a batch, of a loss and of a run: input checks, localisation, dump and replay, forensics."""

from .dump import Dump, load_batch, save_batch
from .finding import Finding, Inspection, Place
from .inspecting import CHECKS, inspect, inspect_padded
from .rules import RULES, Warned, warned

__all__ = [
    "CHECKS",
    "RULES",
    "Dump",
    "Finding",
    "Inspection",
    "Place",
    "Warned",
    "inspect",
    "inspect_padded",
    "load_batch",
    "save_batch",
    "warned",
]
