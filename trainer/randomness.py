"""Random numbers: every one of the trainer's follows from the seed, the use and the step; generators are for what others draw."""

import random
from hashlib import blake2b

import torch
from torch import Tensor

from .ranks import Group


def seed_of(*parts: object) -> int:
    """Return a seed that differs for every use, step and rank that is named, and needs no state."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=7).digest(), "little")


def states(group: Group) -> dict[str, Tensor]:
    """Return the states of torch's and Python's generators, a row for each rank."""
    mine = {"torch": torch.get_rng_state(), "python": torch.tensor(random.getstate()[1])}
    return {name: group.gather(x[None]) for name, x in mine.items()}


def take_up(saved: dict[str, Tensor], group: Group) -> None:
    """Set both generators; a rank that was not there takes the state of another."""
    # A copy: torch.set_rng_state reads past the end of a row that is a view (torch 2.13), and the process dies.
    mine = {name: x[group.rank % x.shape[0]].clone() for name, x in saved.items()}
    torch.set_rng_state(mine["torch"].to(torch.uint8))
    random.setstate((3, tuple(mine["python"].tolist()), None))
