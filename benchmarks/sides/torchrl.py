"""torchrl's vectorised GAE. It knows ends but no holes."""

from importlib.metadata import version
from typing import Any

import torch
from torchrl.objectives.value.functional import vec_generalized_advantage_estimate

VERSION = version("torchrl")


def gae(x: dict[str, Any]) -> Any:
    mask, values = x["mask"], x["values"].unsqueeze(-1)
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    inside = torch.cat([mask[:, 1:], torch.zeros_like(mask[:, :1])], 1).unsqueeze(-1)
    rewards = x["rewards"].unsqueeze(-1)
    # An end at the last token only: it lays out one row per end, so padding that ends at every step would take 100 GB.
    done = mask.unsqueeze(-1) & ~inside
    done[:, -1] = True

    def step() -> Any:
        return vec_generalized_advantage_estimate(x["gamma"], x["lam"], values, after, rewards, done, time_dim=1)[0]

    return step, lambda: {"advantages": step().squeeze(-1)}
