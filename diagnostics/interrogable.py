"""The objective that ``compose`` gives: the pipeline's, with the questions that may be put to it, of which the pipeline knows nothing."""

from ..batch import Batch
from ..pipeline import Objective
from .finding import Inspection
from .inspecting import Cost, inspect


class Interrogable(Objective):
    """An objective that can be asked about a batch; it differs from its base in nothing that is computed."""

    def inspect(self, batch: Batch, *, cost: Cost = "full", step: int | None = None) -> Inspection:
        """Ask a batch every question of ``diagnostics.CHECKS``, or the cheap ones, with what this recipe needs. Waits for the device.

        ``step``: how many optimizer steps were taken before; from the second on the objective knows it.
        """
        return inspect(batch, self, cost=cost, step=step)
