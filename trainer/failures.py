"""What may go wrong in a run of days: a step that cannot be taken is left out, and a machine that is taken away leaves a checkpoint."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..registry import LossaryError


class Terminated(LossaryError):
    """The run was asked to end (SIGTERM) and wrote a checkpoint; ``lossary train`` exits with 143."""


class Skips:
    """Counts optimizer steps that were not taken; more than ``most`` in a row raise ``LossaryError``."""

    def __init__(self, most: int) -> None:
        self.most, self.total, self.row, self.why = most, 0, 0, ""

    def skip(self, why: str, step: int) -> None:
        """Count one."""
        self.total, self.row, self.why = self.total + 1, self.row + 1, why
        if self.row > self.most:
            times = f"{self.row} optimizer steps in a row were left out (train.max_skipped is {self.most}); the last: " if self.most else ""
            raise LossaryError(f"step {step}: {times}{why}")

    def took(self) -> None:
        """One was taken."""
        self.row = 0


@contextmanager
def listening(heard: threading.Event) -> Iterator[None]:
    """Set ``heard`` when SIGTERM arrives, instead of dying in the middle of a step; the step that runs is finished first."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only a main thread hears signals
        return
    before = signal.signal(signal.SIGTERM, lambda *_: heard.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
