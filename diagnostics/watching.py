"""Watch a run: the cheap checks in every step, all of them every so often, and the rules over its metric lines. Silent when fine."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..batch import Batch
from ..pipeline import Plan
from ..registry import LossaryError
from .finding import Inspection
from .inspecting import inspect
from .rules import warned

TIED = 1e-9
LEFT_TO_RULES = frozenset({"groups-tied", "rewards-constant", "advantages-zero-spread", "samples-identical"})
"""What a batch alone cannot tell from a task that is solved; the rules know how the run came there."""


class Watch:
    """Look at each rollout and each metric line, and write what is found to ``warnings.jsonl``; what lasts is said once.

    ``every``: steps between full inspections; 0: nothing is looked at.
    """

    def __init__(self, plan: Plan, every: int, folder: Path, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self.plan, self.every, self.path, self.tell = plan, every, folder / "warnings.jsonl", tell
        self._last: dict[str, frozenset[str]] = {}

    def look(self, raw: Batch, batch: Batch, step: int) -> dict[str, float]:
        """Inspect a rollout that was estimated, which follows ``step`` others; return what its metric line gains."""
        if not self.every:
            return {}
        self._say(step, inspect(batch, self.plan, cost="cheap" if step % self.every else "full", step=step))
        return health(raw, step)

    def _say(self, step: int, found: Inspection) -> None:
        now = frozenset(f.check for f in found) - LEFT_TO_RULES
        new = now - self._last.get("checks", frozenset())
        ran = frozenset(found.ran)
        self._last["checks"] = now | (self._last.get("checks", frozenset()) - ran)
        self._write({"step": step + 1, "warning": f.check, **f.plain()} for f in found if f.check in new)

    def judge(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Ask the rules about the last line."""
        if self.every:
            self._write({"step": w.place.step, "warning": w.check, **w.plain()} for w in warned(lines))

    def _write(self, found: Iterable[Mapping[str, Any]]) -> None:
        for line in found:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.tell(line)

    def keep_until(self, step: int) -> None:
        """Drop what was said of steps that a resumed run takes again."""
        if not self.path.exists():
            return
        texts, kept = self.path.read_text("utf-8").splitlines(), []
        for i, text in enumerate(texts):
            try:
                if json.loads(text)["step"] <= step:
                    kept.append(text)
            except (ValueError, TypeError, KeyError) as error:
                if i < len(texts) - 1:  # only the last line can have been cut off by a kill
                    raise LossaryError(f"{self.path}:{i + 1}: no line of warnings: {text[:40]!r}") from error
        aside = self.path.with_suffix(".partial")
        aside.write_text("".join(f"{t}\n" for t in kept), "utf-8")
        os.replace(aside, self.path)


@torch.no_grad()
def health(batch: Batch, step: int) -> dict[str, float]:
    """Return the share of groups without a spread of rewards, over all and by prompt length (in powers of 2), and the age of the oldest token."""
    told: dict[str, float] = {}
    s = batch.sequences
    if "rewards" in batch and s.groups is not None and len(batch):
        tied = (s.group_std(batch["rewards"].double()) <= TIED).tolist()
        told["groups/zero_variance"] = sum(tied) / len(tied)
        if batch.prompts:
            buckets: dict[int, dict[int, bool]] = {}
            for group, prompt in zip(batch.groups, batch.prompts, strict=True):
                buckets.setdefault(prompt.bit_length(), {})[group] = tied[group]
            for bits, found in sorted(buckets.items()):
                told[f"groups/zero_variance/{_range(bits)}"] = sum(found.values()) / len(found)
    if "policy_version" in batch and batch["policy_version"].numel():
        told["rollout/age"] = float(step - int(batch["policy_version"].min()))
    return told


def _range(bits: int) -> str:
    return f"prompt_{1 << bits - 1}-{(1 << bits) - 1}" if bits else "prompt_0"
