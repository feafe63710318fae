"""What the estimators by turn share: which sequences have a turn, and the table of (sequence, turn)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ...batch import Sequences


@dataclass(frozen=True)
class Turns:
    """The ``S x K`` cells of a table of turns."""

    cell: Tensor
    """``[N]``: the cell of each token."""
    inside: Tensor
    """``[N]``: whether the table has the token's turn at all."""
    present: Tensor
    """``[S K]``: whether a token was sampled in the cell's turn."""

    @classmethod
    def of(cls, turns: Tensor, count: int, sequences: Sequences) -> "Turns":
        """Lay out a table of ``count`` turns."""
        inside = (turns >= 0) & (turns < count)
        cell = sequences.index * count + turns.long().clamp(0, count - 1)
        tokens = torch.zeros(sequences.lengths.shape[0] * count, dtype=torch.long, device=turns.device)
        return cls(cell, inside, tokens.index_add(0, cell, inside.long()) > 0)

    def spread(self, table: Tensor) -> Tensor:
        """``[S, K] -> [N]``: give each token its turn's value; 0 where the table has no such turn."""
        return torch.where(self.inside, table.flatten().index_select(0, self.cell), 0.0)

    def peers(self, sequences: Sequences, count: int) -> Sequences:
        """Return one "sequence" per cell whose group is that turn of the prompt's group, over all ranks; absent cells keep to themselves."""
        group = sequences.group_spread(torch.arange(sequences.group_size().shape[0], device=self.cell.device))
        key = (group[:, None] * count + torch.arange(count, device=group.device)).flatten()
        return Sequences.of(torch.ones_like(key), key.shape[0], torch.where(self.present, key, -1)).across(sequences.ranks)
