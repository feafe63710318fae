"""A stranger's code at arm's length: what it prints goes to stderr, and the process is handed back as it was lent."""

import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from typing import Any

import torch

from .errors import PluginWarning


@contextmanager
def isolated(who: str) -> Iterator[None]:
    """Lend the process to a stranger's module or hook; whatever it changed for all others is put back and told in a ``PluginWarning``.

    That is torch's default dtype, default device and grad mode, the random seed and the working directory. The state of the random
    generators is put back without a word: to have drawn from them is no fault, and a run must not depend on who listens.
    """
    before = [(watched, watched.now()) for watched in _WATCHED]
    drawn = _generators()
    try:
        with _own_stdout(), redirect_stdout(sys.stderr):
            yield
    finally:
        changed = [(watched, was, now) for watched, was in before if (now := watched.now()) != was]
        for watched, was, _ in changed:
            watched.put(was)
        for put, state in drawn:
            put(state)
        if changed:
            told = ", ".join(f"{watched.name} from {was} to {now}" for watched, was, now in changed)
            warnings.warn(f"{who} changed {told}, for everybody in this process: it was put back.", PluginWarning, stacklevel=4)


@contextmanager
def _own_stdout() -> Iterator[None]:
    """Let descriptor 1 be stderr for a while: C code and child processes do not ask ``sys.stdout`` where it goes."""
    _flush()
    try:
        kept = os.dup(1)
    except OSError:  # closed: nothing can be written to it
        yield
        return
    try:
        with suppress(OSError):  # no stderr either
            os.dup2(2, 1)
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):
        with suppress(Exception):  # None, closed, or a stranger's
            stream.flush()  # type: ignore[union-attr]


@dataclass(frozen=True)
class _Watched:
    """Something that belongs to the whole process: how to read it and how to put it back."""

    name: str
    now: Callable[[], Any]
    put: Callable[[Any], object]


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None


def _enter(folder: str | None) -> None:
    if folder is not None:
        with suppress(OSError):
            os.chdir(folder)


def _device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)  # None: without a mode that every call passes through


_WATCHED = (
    _Watched("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    _Watched("torch's default device", torch.get_default_device, _device),
    _Watched("torch's grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    _Watched("the random seed", torch.initial_seed, lambda _: None),  # the state of the generator holds it
    _Watched("the working directory", _folder, _enter),
)


def _generators() -> list[tuple[Callable[[Any], object], Any]]:
    """Return the state of each random generator, and what puts it back."""
    found: list[tuple[Callable[[Any], object], Any]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    return found
