"""Any of the tasks of reasoning-gym: endless questions made by a rule, each with a grader of its own."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from ..registry import nearest, task
from .task import Item, Task

HELD_OUT = 1_000_000_000
"""Where held-out seeds begin: far from any that training draws."""


@dataclass(frozen=True)
class GymItem(Item):
    """A question with all that its grader wants to know."""

    entry: Any = None

    def __hash__(self) -> int:
        return hash((self.prompt, self.answer))


class Gym:
    """One dataset of reasoning-gym. A question that is held out is passed over in training, though its seed is another's."""

    def __init__(self, make: Any, max_new_tokens: int, seed: int, suffix: str, shaped: bool) -> None:
        self._make, self._seed, self._suffix, self._shaped = make, seed, suffix, shaped
        self.max_new_tokens = max_new_tokens
        self._grader = make(seed=0, size=1)

    def train_item(self, index: int) -> Item:
        """Return the training item at ``index``: always the same one."""
        for attempt in range(1000):
            item = self._item(_number("train", self._seed, index, attempt) % HELD_OUT)
            if not _aside(item.prompt):
                return item
        raise ValueError("every question of this task is held out; widen its settings")

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items, or all that were found."""
        found: dict[Item, None] = {}
        for place in range(40 * n):
            if len(found) == n:
                break
            item = self._item(HELD_OUT + place)
            if _aside(item.prompt):
                found[item] = None
        return list(found)

    def reward(self, item: Item, completion: str) -> float:
        """Return the grader's score; with ``shaped``, of an answer that is no more than wrong, up to a fifth for the digits it has right."""
        assert isinstance(item, GymItem)
        said = completion.strip()
        score = float(self._grader.score_answer(said or None, item.entry))
        if score >= 1 or not self._shaped:
            return score
        return max(score, 0.2 * _alike(said, item.answer.strip()))

    def _item(self, seed: int) -> Item:
        entry = self._make(seed=seed, size=1)[0]
        return GymItem(entry["question"] + self._suffix, str(entry["answer"]), entry)


@task
def reasoning_gym(
    *,
    name: Annotated[str, "which of its tasks, as in chain_sum"],
    settings: Annotated[Mapping[str, Any] | None, "what that task is told: its own configuration"] = None,
    max_new_tokens: Annotated[int, Ge(1), "the longest answer, end of sequence included"] = 32,
    suffix: Annotated[str, "stands behind every question"] = "",
    shaped: Annotated[bool, "pays a little for an answer that is nearly right"] = False,
    seed: Annotated[int, "decides the order of the training questions"] = 0,
) -> Task:
    """Ask what a task of reasoning-gym asks, scored by its own grader (the extra ``[tasks]``).

    A fifth of all questions is held out, by the hash of their text. A name that it does not know and a setting that it refuses are errors.
    """
    try:
        import reasoning_gym as gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise ValueError(f"the task reasoning-gym needs the extra [tasks]: pip install 'lossary[tasks]' ({error})") from None
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {name!r}.{nearest(name, DATASETS)}")

    def make(seed: int, size: int) -> Any:
        try:
            return gym.create_dataset(name, seed=seed, size=size, **(settings or {}))
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"reasoning-gym's {name} refuses these settings: {error}") from error

    return Gym(make, max_new_tokens, seed, suffix, shaped)


def _number(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=7).digest(), "little")


def _aside(prompt: str) -> bool:
    return hashlib.sha256(prompt.encode()).digest()[0] % 5 == 0


def _alike(said: str, answer: str) -> float:
    """Return which share of two texts agrees, place by place."""
    longest = max(len(said), len(answer))
    return sum(a == b for a, b in zip(said, answer, strict=False)) / longest if longest else 1.0
