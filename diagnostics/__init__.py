"""Questions to ask of a batch, of a loss and of a run: input checks, localisation, dump and replay, forensics."""

from .finding import Finding, Inspection, Place
from .inspecting import CHECKS, inspect

__all__ = ["CHECKS", "Finding", "Inspection", "Place", "inspect"]
