"""A run of which everything must be remembered, what its checkpoint holds and what it left, for tests to compare."""

import json

import torch

from lossary.trainer.checkpoint import Saved
from lossary.trainer.ranks import Group

RECIPE = """
advantage: [{use: gae, lam: 0.9}, whiten]
policy_loss: ppo-clip
value_loss: {use: clipped-mse, coef: 0.5}
kl:
  - {use: k1, apply: reward, coef: {use: adaptive-kl, kl_coef: 0.5, target: 1e-4, horizon: 20}}
  - {use: k3, coef: {use: linear, start: 0.1, end: 0.0, steps: 8}}
task: {use: sort-letters, letters: 2}
model: {d_model: 16, layers: 1, heads: 2}
warm_up: {steps: 3, batch: 4}
rollout: {prompts: 4, samples_per_prompt: 2}
train: {steps: 4, minibatches: 2, epochs: 2, lr: 1e-2, checkpoint_every: 1}
evaluate: {every: 2, items: 8}
"""


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
