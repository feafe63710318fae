"""Helpers of the tests of corrections: a world in which a fifth of the tokens was not scored, and results in pairs."""

import math
from typing import Any

import torch
from torch import Tensor
from worlds import World

from lossary.batch import Batch


def world(seed: int, dtype: torch.dtype = torch.float64) -> Batch:
    """Nine sequences with holes, one of them empty; a fifth of the tokens was not scored by the sampler."""
    w = World(seed, dtype=dtype)
    g = torch.Generator().manual_seed(seed)
    w.columns["rollout_log_prob"] = w.columns["old_log_prob"] + 0.3 * torch.randn(w.mask.shape, generator=g).to(dtype)
    w.columns["rollout_log_prob"][torch.rand(w.mask.shape, generator=g) < 0.2] = math.nan
    return w.batch(trained=True, correction=torch.rand(w.mask.shape, generator=g).to(dtype) + 0.5)


def pair(out: Any) -> tuple[Tensor | None, Tensor | None]:
    weight, keep = out[0] if isinstance(out[0], tuple) else out
    return weight, keep
