"""Questions to ask of a batch, of a loss and of a run: input checks, localisation, dump and replay, forensics."""

from .blame import Blame, blame_and_dump, localise
from .dump import Dump, load_batch, save_batch
from .finding import Finding, Inspection, Place
from .inspecting import CHECKS, inspect, inspect_padded
from .packing import DumpError
from .rules import RULES, warned

__all__ = [
    "CHECKS",
    "RULES",
    "Blame",
    "Dump",
    "DumpError",
    "Finding",
    "Inspection",
    "Place",
    "blame_and_dump",
    "inspect",
    "inspect_padded",
    "load_batch",
    "localise",
    "save_batch",
    "warned",
]
