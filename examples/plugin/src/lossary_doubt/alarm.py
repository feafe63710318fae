"""The alarm: a reward that rises while the held-out accuracy falls is a grader being fooled."""

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger("lossary_doubt")


class Alarm:
    """Hears the events of the bundled trainer and says once per run, as a warning of the log, that the policy fools its grader."""

    def __init__(self, *, gained: float = 0.05, lost: float = 0.05) -> None:
        self.gained, self.lost = gained, lost
        self._forget()

    def _forget(self) -> None:
        self.reward: float | None = None
        self.at_best: tuple[float, float] | None = None
        """Accuracy and reward at the evaluation with the best accuracy so far."""
        self.rung = False

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in one event; the one of step 0 begins another run."""
        if event.get("step") == 0:
            self._forget()
        self.reward = event.get("reward", self.reward)
        accuracy = event.get("eval/accuracy")
        if accuracy is None or self.reward is None:
            return
        if self.at_best is None or accuracy >= self.at_best[0]:
            self.at_best = accuracy, self.reward
        elif not self.rung and accuracy < self.at_best[0] - self.lost and self.reward > self.at_best[1] + self.gained:
            self.rung = True
            log.warning(
                "step %s: the reward rose from %.3f to %.3f while the held-out accuracy fell from %.3f to %.3f: is the grader fooled?",
                event.get("step"), self.at_best[1], self.reward, self.at_best[0], accuracy,
            )  # fmt: skip
