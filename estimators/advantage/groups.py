"""What the group estimators share: rewards measured against those of the same prompt, and the two cases that need a rule."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator

Singleton = Annotated[Literal["zero", "reward"], "what a sequence alone in its group gets: 0, or what it earned itself"]
_ROUNDINGS = 4
"""How many units in the last place a group's deviation may have and still be noise: rewards are sums of a few rounded terms."""


def centred(rewards: Tensor, sequences: Sequences, singleton: Singleton) -> tuple[Tensor, Tensor]:
    """Return ``(rewards minus their group's mean, standard deviation of the group)``, both ``[S]`` float64.

    A group whose deviation is no more than the rounding of its rewards is tied and gives exactly 0, since dividing rounding noise by
    itself would make advantages of size 1 out of it. A sequence alone in its group has nothing to be measured against: it gives 0, or
    with ``singleton="reward"`` its reward, as if mean and deviation were 0 and 1.
    """
    exact = rewards.to(accumulator(rewards))
    apart = exact - sequences.group_spread(sequences.group_mean(exact))
    deviation = sequences.group_spread(sequences.group_std(exact))
    tied = deviation <= rounding(rewards, sequences)
    apart = torch.where(tied, 0.0, apart)
    if singleton == "reward":
        alone = sequences.group_spread(sequences.group_size()) == 1
        apart, deviation = torch.where(alone, exact, apart), torch.where(alone, 1.0, deviation)
    return apart, deviation


def rounding(rewards: Tensor, sequences: Sequences) -> Tensor:
    """Return ``[S]``: how large the deviation of a group may be and still be the rounding of its rewards."""
    square = sequences.group_mean(rewards.to(accumulator(rewards)).square())
    return sequences.group_spread(rounding_of(square, rewards.dtype))


def rounding_of(mean_square: Tensor, dtype: torch.dtype) -> Tensor:
    """Return how large the deviation of numbers of a ``dtype`` may be and still be their rounding, given the mean of their squares."""
    return _ROUNDINGS * torch.finfo(dtype).eps * mean_square.sqrt()
