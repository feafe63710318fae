"""The loss and head part of a training step with the vocabulary of SmolLM2: tokens per second, and the memory that it takes."""

import cases
import pytest
import torch
from race import Bound, Entrant
from sides import byhand, ours

WORDS = 49152
SIZES = ((4, 64, 64), (4, 64, 576), (8, 256, 576))
"""Sequences, tokens of each, width: the bundled GPT's, and SmolLM2-135M's in a small and in a larger micro-batch."""


def peak(step) -> int:
    """Return the most bytes that one call holds at once beyond what was there before it."""
    if torch.cuda.is_initialized():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        step()
    held = most = 0
    for event in sorted(prof.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def copied(x, device):
    return {n: v.to(device, copy=True) if isinstance(v, torch.Tensor) else v for n, v in x.items()}


@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
def bench_loss_and_head_of_a_step(races, benchmark, size):
    rows, each, width = size
    n = rows * each
    if races.quick and size == SIZES[-1]:
        pytest.skip("not in the quick run")
    x = cases.head(*size, WORDS)
    held = {name: peak(side.head(copied(x, races.device.torch))[0]) for name, side in (("ours", ours), ("by hand", byhand))}
    figure = f"loss and head of a step, N={n} H={width} V={WORDS}; peak MB " + ", ".join(f"{k} {v / 1e6:.0f}" for k, v in held.items())
    whole = Entrant("byhand", "head", "whole logits", targets={"ratio": 0.5})
    gemms, _ = byhand.gemms({k: x[k].to(races.device.torch) for k in ("hidden", "weight")})
    races.run(benchmark, figure, x, Entrant("ours", "head"), [whole], bound=Bound("for three products", gemms), rounds=5, tolerance=1e-4)
    mine, theirs = races.rows[-1]["ours"]["seconds"], races.rows[-1]["peer"]["seconds"]
    print(f"tokens per second: {n / mine:.0f}, by hand {n / theirs:.0f}: {theirs / mine:.2f} times as many")
