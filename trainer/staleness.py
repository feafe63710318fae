"""Weights as they were some updates ago: what an asynchronous trainer's sampler still has, without a second process."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


class Snapshots:
    """Copies of the last ``staleness + 1`` versions of a policy; with 0 nothing is copied.

    The sampler of update ``t`` has the weights of update ``max(0, t - staleness)``.
    """

    def __init__(self, staleness: int) -> None:
        self._staleness = staleness
        self._kept: dict[int, dict[str, Tensor]] = {}

    @torch.no_grad()
    def at(self, weights: Mapping[str, Tensor], version: int) -> tuple[Iterable[tuple[str, Tensor]], int]:
        """Keep the policy as ``version`` and return the weights to sample from, with their own version."""
        if not self._staleness:
            return weights.items(), version
        self._kept[version] = {name: x.detach().clone() for name, x in weights.items()}
        for old in [v for v in self._kept if v < version - self._staleness]:
            del self._kept[old]
        oldest = min(self._kept)
        return self._kept[oldest].items(), oldest

    @property
    def versions(self) -> list[int]:
        """Which versions a resumed run needs to sample as this one would."""
        return sorted(self._kept)

    def tensors(self) -> dict[str, Tensor]:
        """Return their weights by name."""
        return {f"{version}.{name}": x for version, kept in self._kept.items() for name, x in kept.items()}

    def allot(self, versions: Iterable[int], like: Mapping[str, Tensor]) -> None:
        """Make room for versions that a checkpoint holds."""
        self._kept = {version: {name: torch.empty_like(x) for name, x in like.items()} for version in versions}
