"""The loss stage: log-probabilities and entropies in, loss and gradients out."""

import cases
import pytest
import torch
from race import Bound, Entrant
from sides import byhand

SHAPES = [(64, 4096), (64, 32768)]
PACKED = 28
"""Bytes per sampled token that must move: read log_prob, old, ref, entropy and advantage, write two gradients."""


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def bench_loss_stage(races, benchmark, shape, how):
    if races.quick and shape == SHAPES[1]:
        pytest.skip("not in the quick run")
    x = cases.loss(*shape)
    add, moved = byhand.stream(1 << 24, races.device.torch)
    compiled = how == "compiled"
    bound = Bound("to move the bytes", add, PACKED * int(x["mask"].sum()) / moved, 6 if compiled and shape == SHAPES[1] else None)
    against = [
        Entrant("verl", "loss", targets={"ratio": 0.1 if compiled else 0.4}),
        Entrant("trl", "loss"),
        Entrant("byhand", "loss", "eager, padded"),
    ]
    ours = Entrant("ours", "loss", options={"compiled": compiled}, slow=compiled)
    races.run(benchmark, f"loss stage {list(shape)}, {how} packed", x, ours, against, bound=bound, rounds=9)
    torch.manual_seed(0)
