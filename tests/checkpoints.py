"""What a checkpoint holds, for tests to compare."""

import torch

from lossary.trainer.checkpoint import Saved
from lossary.trainer.ranks import Group


def tensors_of(path):
    """Every tensor of a checkpoint by its name, but for the generators' states, which the trainer never draws from."""
    saved = Saved(path)
    known = saved._reader.index.state_dict_metadata
    room = {
        name: torch.zeros(known[name].size, dtype=known[name].properties.dtype)
        for name in saved.names
        if not name.startswith("plain.random.")
    }
    saved.into(room, Group())
    return room
