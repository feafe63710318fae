"""Random numbers without a generator: each token's is a hash of where it stands."""

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_GOLDEN = 0x9E3779B97F4A7C15


def hashed_uniform(ids: Tensor, places: Tensor, *, seed: int, step: int) -> Tensor:
    """Return one uniform float64 in ``[0, 1)`` per element, from ``(seed, step, id, place)`` alone (integers of any sign).

    The finaliser of SplitMix64 runs once for each of the four, in integers that wrap around: no generator enters a graph, and split,
    order and rank change nothing.
    """
    x = _mixed(torch.full_like(ids, _signed(seed * _GOLDEN)))
    for part in (torch.full_like(ids, _signed(step)), ids, places):
        x = _mixed(x ^ _mixed(part + _signed(_GOLDEN)))
    return _shifted(x, 11).to(torch.float64) * 2.0**-53


def _mixed(x: Tensor) -> Tensor:
    for shift, factor in _STEPS:
        x = (x ^ _shifted(x, shift)) * _signed(factor)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, by: int) -> Tensor:
    return (x >> by) & ((1 << (64 - by)) - 1)  # torch shifts the sign in; SplitMix64 shifts zeros


def _signed(x: int) -> int:
    x &= _MASK
    return x - (1 << 64) if x >> 63 else x
