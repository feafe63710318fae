"""Tasks: what is asked, and what an answer is worth. Small ones with a held-out set and a reward that is exact."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .add_numbers import add_numbers
from .calculator import calculator
from .jsonl import jsonl
from .reasoning_gym import reasoning_gym
from .sort_letters import sort_letters
from .spell_backward import spell_backward
from .task import ExactMatch, Item, Task, Turn

__all__ = ["ExactMatch", "Item", "Task", "Turn", "add_numbers", "calculator", "jsonl", "reasoning_gym", "sort_letters", "spell_backward"]


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [add_numbers, calculator, jsonl, reasoning_gym, sort_letters, spell_backward]
