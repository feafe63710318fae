"""Where a benchmark runs, and the clock that counts there. Peers' processes use it too, so it needs nothing but torch."""

import time
from collections.abc import Callable
from typing import Any

import torch


class Device:
    """``cpu``: CPU seconds of this process. ``cuda``: seconds between two events of the stream. ``dry``: the latter's steps on the CPU.

    Differences of ``now()`` are what is reported. Other processes on the machine do not count on the CPU, which is why medians of CPU
    time are used and not the wall clock.
    """

    def __init__(self, name: str) -> None:
        if name not in ("cpu", "cuda", "dry"):
            raise ValueError(f"no device {name!r}: say cpu, cuda or dry.")
        self.name, self.cuda = name, name != "cpu"
        self.torch = torch.device("cuda" if name == "cuda" else "cpu")
        self._event: Callable[[], Any] = (lambda: torch.cuda.Event(enable_timing=True)) if name == "cuda" else DryEvent
        if self.cuda:
            self._start = self._recorded()

    def now(self) -> float:
        """Return seconds since some moment, once all work handed out so far is done."""
        if not self.cuda:
            return time.process_time()
        return float(self._start.elapsed_time(self._recorded())) / 1e3

    def _recorded(self) -> Any:
        event = self._event()
        event.record()
        event.synchronize()
        return event

    def seconds(self, step: Callable[[], Any], iterations: int = 1) -> float:
        """Return the seconds of one call, as the mean over ``iterations`` of them in a row."""
        begin = self.now()
        for _ in range(iterations):
            step()
        return (self.now() - begin) / iterations


class DryEvent:
    """Stands for ``torch.cuda.Event`` where there is no GPU."""

    def record(self) -> None:
        self.at = time.process_time()

    def synchronize(self) -> None:
        assert self.at >= 0

    def elapsed_time(self, other: "DryEvent") -> float:
        return 1e3 * (other.at - self.at)
