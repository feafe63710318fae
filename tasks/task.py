"""What a task is: questions, a held-out set of them, and a reward."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(frozen=True)
class Item:
    """A question and its one right answer."""

    prompt: str
    answer: str


@dataclass(frozen=True)
class Turn:
    """A part of a response: what the model says, or what it is shown, which carries no loss."""

    text: str
    observed: bool = False


class Task(Protocol):
    """Endless training items, a fixed held-out set that none of them is in, and a reward.

    A task may also have ``columns``, a mapping ``{column: function of an item and a completion}``: what it knows of an answer beside
    the reward, for the components of the same plugin (``trainer/brought.py``).

    A task of several turns has ``turns``, their number, and ``reply(item, said)``: what is shown to the model after a turn that it ended,
    or None where that was its answer. The reward is of what was said last. ``demonstration(item)`` then gives the turns to imitate.
    """

    @property
    def max_new_tokens(self) -> int:
        """The longest answer, end of sequence included."""
        ...

    def train_item(self, index: int) -> Item:
        """Return the training item at ``index``: always the same one."""
        ...

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items, or all where there are fewer."""
        ...

    def reward(self, item: Item, completion: str) -> float:
        """Score a completion, its end of sequence taken off."""
        ...


@dataclass(frozen=True)
class ExactMatch:
    """A task made of a way to draw an item: what is right word for word scores 1, anything else 0.

    Parameters
    ----------
    draw
        Makes an item from a random stream.
    key
        What must not be in both sets: two items of equal key are on the same side. A fifth of all keys are held out, by
        their hash, so that the held-out set depends on no seed and stays the same when other keys come or go.
    max_new_tokens
        The longest answer, end of sequence included.
    seed
        Of the training items' order.
    """

    draw: Callable[[Random], Item]
    key: Callable[[Item], str]
    max_new_tokens: int
    seed: int = 0

    def train_item(self, index: int) -> Item:
        """Return the training item at ``index``: always the same one."""
        stream = Random(f"train {self.seed} {index}")
        while self._held_out(item := self.draw(stream)):
            pass
        return item

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items, or all where there are fewer."""
        stream = Random("held out")
        found: dict[Item, None] = {}
        # A small task has fewer than n: at one draw in five held out, this many find all of them but for a negligible chance.
        for _ in range(100 * n):
            if len(found) == n:
                break
            item = self.draw(stream)
            if self._held_out(item):
                found[item] = None
        return list(found)

    def reward(self, item: Item, completion: str) -> float:
        """Return 1 for exactly the answer, else 0."""
        return float(completion == item.answer)

    def _held_out(self, item: Item) -> bool:
        return hashlib.sha256(self.key(item).encode()).digest()[0] % 5 == 0
