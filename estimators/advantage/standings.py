"""Who stands where in a group: sorted once over all ranks, without a loop and without knowing whose reward is whose."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch import Sequences


@dataclass(frozen=True)
class Standings:
    """All scores of all ranks, group by group and each group from the lowest to the highest."""

    ladder: Sequences
    """One "sequence" per group, whose places are the ranks in it."""
    scores: Tensor
    """``[all]``: the scores in that order."""
    mine: Tensor
    """``[S]``: where in that order each sequence of this rank stands; of equal ones, where the first stands."""

    @property
    def place(self) -> Tensor:
        """``[S]``: how many of its group stand below each sequence of this rank."""
        return self.ladder.places.index_select(0, self.mine)

    def lowest(self, sequences: Sequences) -> Tensor:
        """``[S]``: the lowest score of each sequence's group."""
        return sequences.group_spread(self._step(self.ladder.offsets))

    def highest(self, sequences: Sequences) -> Tensor:
        """``[S]``: the highest score of each sequence's group."""
        return sequences.group_spread(self._step(self.ladder.offsets + self.ladder.lengths - 1))

    def _step(self, which: Tensor) -> Tensor:
        """``[G] -> [G]``: the scores at places of the ladder; what an unused slot gets means nothing."""
        spare = torch.cat([self.scores, self.scores.new_zeros(1)])
        return spare.index_select(0, which.clamp(0, self.scores.shape[0]))


def standings(scores: Tensor, sequences: Sequences) -> Standings:
    """Sort ``scores [S]`` within groups, over all ranks: ``O(n log n)``, and all shapes follow from shapes.

    Equal scores share a place, so whatever is computed from a place must be the same for equals.
    """
    size = sequences.group_size().long()
    groups = torch.arange(size.shape[0], device=size.device)
    mine = sequences.group_spread(groups)
    everyone = sequences.ranks.gather(scores)
    ordered = everyone.sort().values
    count = everyone.shape[0]
    key = mine * count + torch.searchsorted(ordered, scores.contiguous())  # (group, score) as one whole number
    keys, order = sequences.ranks.gather(key).sort()
    ladder = Sequences.of(size, count)
    return Standings(ladder, everyone.index_select(0, order), torch.searchsorted(keys, key))
