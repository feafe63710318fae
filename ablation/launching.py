"""Where runs run: processes of this machine, one thread each."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import IO, Protocol

from ..pipeline.overrides import PREFIX

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
Ended = tuple[bool, str]
"""Whether it ended well, and what it said last."""


class Handle(Protocol):
    """A run that was begun."""

    def ended(self) -> Ended | None:
        """Return None while it runs."""
        ...

    def stop(self) -> None:
        """End it in a way that it can be gone on with."""
        ...


class Launcher(Protocol):
    """Begins a run, which is a command, under a name."""

    def start(self, name: str, words: list[str]) -> Handle:
        """Begin, or find again what was begun under this name and still runs."""
        ...


class Local:
    """A process for each run; they end with this one, and hold the folder's lock until they have."""

    def __init__(self, lock: IO[str] | None = None) -> None:
        self.lock = lock

    def start(self, name: str, words: list[str]) -> "Process":
        """Begin."""
        held = () if self.lock is None else (self.lock.fileno(),)
        return Process(words, held)


class Process:
    """One process."""

    def __init__(self, words: list[str], held: tuple[int, ...]) -> None:
        self.said = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 closed when it has ended
        self.process = subprocess.Popen(
            words, stdout=subprocess.DEVNULL, stderr=self.said, stdin=subprocess.DEVNULL, env=environment(), start_new_session=True,
            pass_fds=held, preexec_fn=_with_its_parent() if sys.platform == "linux" else None,
        )  # fmt: skip

    def ended(self) -> Ended | None:
        """Return None while it runs."""
        code = self.process.poll()
        if code is None:
            return None
        self.said.seek(0)
        text = self.said.read().strip() or f"ended with exit code {code}"
        return code == 0, text

    def stop(self) -> None:
        """Ask it to write a checkpoint and end, and wait a while. What was begun in a shell's background hears no SIGINT, and it neither."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.said.close()


def environment() -> dict[str, str]:
    """Return this environment with one thread, and without settings of recipes: those are in the variants already."""
    kept = {k: v for k, v in os.environ.items() if not k.upper().startswith(PREFIX)}
    return kept | dict.fromkeys(THREADS, "1")


def command(*words: str) -> list[str]:
    """Return the command ``lossary ...`` as this Python runs it."""
    return [sys.executable, "-m", "lossary", *words]


def _with_its_parent() -> Callable[[], None]:
    """Return what makes a process end when the one that began it does, even by ``kill -9``."""
    library, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        library.prctl(1, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask
