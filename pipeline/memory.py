"""What an objective remembers between steps: states of components, measurements of terms, the number of committed steps."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from ..batch import Ranks, Sequences
from ..numerics import accumulator, safe_divide
from ..registry import ColumnError, Level, LossaryError, Measured
from .bound import Bound


class Watch(Protocol):
    """What a term may know of the time, and whom it tells what it came to."""

    @property
    def step(self) -> int | Tensor:
        """How many steps were committed."""

    def observe(self, key: str, x: Tensor, sequences: Sequences, level: Level) -> None:
        """Hear of a term's unreduced values."""


class Memory:
    """Current states, and those that wait for ``commit``: an update that was skipped leaves no trace."""

    def __init__(self) -> None:
        self.step = 0
        self._current: dict[str, Mapping[str, Any]] = {}
        self._measured: dict[str, Tensor] = {}
        self._waiting: dict[str, dict[str, Mapping[str, Any]]] = {"estimate": {}, "weigh": {}}
        self._sums: dict[str, Tensor] = {}
        self._done: dict[str, Tensor] = {}

    def state(self, key: str, bound: Bound) -> Mapping[str, Any]:
        """Return a component's current state, made by its ``init`` the first time."""
        if key not in self._current:
            assert bound.component.init is not None
            self._current[key] = _a_mapping(bound.call([], bound.component.init), bound.who)
        return self._current[key]

    def forget(self, stage: str) -> None:
        """Drop what waits from an earlier call of ``estimate`` or ``weigh`` that no commit followed."""
        self._waiting[stage] = {}
        if stage == "weigh":
            self._sums = {}
        else:
            self._done = {}

    def wait(self, stage: str, key: str, state: Mapping[str, Any]) -> None:
        """Keep a new state until the step is committed."""
        self._waiting[stage][key] = _a_mapping(state, f"the component of {key!r}")

    def measured(self, key: str, like: Tensor) -> Measured:
        """Return what the last committed step measured for a coefficient; zeros before the first."""
        found = self._measured.get(key)
        if found is None:
            found = torch.zeros(4, dtype=accumulator(like), device=like.device)
        tokens, count, means, sequences = found.to(like.device).unbind()
        return Measured(safe_divide(tokens, count), safe_divide(means, sequences), sequences)

    def observe(self, key: str, x: Tensor, sequences: Sequences, level: Level) -> None:
        """Add a term's unreduced values of one micro-batch to what the coming commit will measure."""
        self.add(key, observed(x, sequences, level))

    def add(self, key: str, seen: Tensor) -> None:
        """Add what was observed of a micro-batch."""
        self._sums[key] = self._sums[key] + seen if key in self._sums else seen

    def settle(self, key: str, x: Tensor, sequences: Sequences, ranks: Ranks) -> None:
        """Measure a whole batch at once, as ``estimate`` does for a KL in the reward."""
        self._done[key] = ranks.sum(observed(x, sequences, Level.TOKEN))

    def commit(self, ranks: Ranks) -> None:
        """Make everything that waits current, reduced over ranks."""
        for waiting in self._waiting.values():
            self._current.update(waiting)
        self._measured.update(self._done)
        self._measured.update({key: ranks.sum(x) for key, x in sorted(self._sums.items())})
        self.forget("estimate")
        self.forget("weigh")
        self.step += 1

    def state_dict(self, uses: Mapping[str, str]) -> dict[str, Any]:
        """Return tensors, numbers and names only; ``uses`` says whose state stands in each slot."""
        states = {key: dict(state) for key, state in self._current.items()}
        return {"step": self.step, "uses": dict(uses), "states": states, "measured": dict(self._measured)}

    def load_state_dict(self, saved: Any, uses: Mapping[str, str]) -> None:
        """Take back what ``state_dict`` gave; states of components that this objective does not have raise ``LossaryError``."""
        parts = {"step": int, "uses": Mapping, "states": Mapping, "measured": Mapping}
        whole = isinstance(saved, Mapping) and all(isinstance(saved.get(key), kind) for key, kind in parts.items())
        if not whole or not all(isinstance(state, Mapping) for state in saved["states"].values()):
            raise LossaryError("this is no state of an objective: it comes from state_dict().")
        if dict(saved["uses"]) != dict(uses) or set(saved["states"]) != set(uses):
            theirs, ours = (", ".join(f"{slot}: {name}" for slot, name in sorted(u.items())) or "none" for u in (saved["uses"], uses))
            raise LossaryError(f"the saved state is of another recipe: it has {theirs}; this one has {ours}.")
        self.step = int(saved["step"])
        self._current = {key: dict(state) for key, state in saved["states"].items()}
        self._measured = dict(saved["measured"])
        self.forget("estimate")
        self.forget("weigh")


def _a_mapping(state: Any, who: str) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise ColumnError(f"{who} gave the state {type(state).__name__}; expected {{name: tensor or number}}.")
    return state


def observed(x: Tensor, sequences: Sequences, level: Level) -> Tensor:
    """Return ``[sum over tokens, tokens, sum over sequences of their means, sequences]``; above the token, each value counts as one."""
    wide = x.detach().to(accumulator(x))
    if level is Level.TOKEN:
        means = sequences.mean(wide).sum()
        count = (sequences.lengths > 0).sum()
    else:
        means, count = wide.sum(), wide.new_full((), wide.shape[0])
    return torch.stack([wide.sum(), wide.new_full((), wide.shape[0]), means, count.to(wide.dtype)])
