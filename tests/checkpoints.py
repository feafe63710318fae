"""What a checkpoint holds and what a run left, for tests to compare."""

import json

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


def written(folder):
    """The metrics file without what the clock says, and the final weights."""
    lines = [json.loads(text) for text in folder.metrics.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines], tensors_of(folder.checkpoint)


def same(a, b):
    (one, weights), (two, other) = written(a), written(b)
    assert one == two
    assert weights.keys() == other.keys()
    assert all(torch.equal(weights[n], other[n]) for n in weights)
    assert repr(Saved(a.checkpoint).plain["objective"]) == repr(Saved(b.checkpoint).plain["objective"])
