"""Weights as they were some updates ago: what an asynchronous trainer's sampler still has, without a second process."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn


class Snapshots:
    """Copies of the last ``staleness + 1`` versions of a policy; with 0 nothing is copied.

    The sampler of update ``t`` has the weights of update ``max(0, t - staleness)``.
    """

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._kept: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def at(self, policy: nn.Module, version: int) -> tuple[Iterable[tuple[str, Tensor]], int]:
        """Keep the policy as ``version`` and return the weights to sample from, with their own version."""
        if not self._staleness:
            return policy.state_dict().items(), version
        self._kept[version] = {name: x.detach().clone() for name, x in policy.state_dict().items()}
        for old in [v for v in self._kept if v < version - self._staleness]:
            del self._kept[old]
        oldest = min(self._kept)
        return self._kept[oldest].items(), oldest

    def state_dict(self) -> dict[int, dict[str, Tensor]]:
        """Return what a resumed run needs to sample as this one would."""
        return dict(self._kept)

    def load_state_dict(self, saved: dict[int, Any]) -> None:
        """Take it back."""
        self._kept = {int(v): dict(kept) for v, kept in saved.items()}
