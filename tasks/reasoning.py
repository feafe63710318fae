"""All generators of reasoning-gym behind one task."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le

from ..registry import nearest, task, worded
from .task import Item, Task

_INTEGER = re.compile(r"-?\d+")


@task
def reasoning_gym(
    *,
    name: Annotated[str, "which generator, as in chain_sum"],
    params: Annotated[Mapping[str, Any], "its own parameters, as in {min_digits: 1}"] = {},
    answer: Annotated[Literal["whole", "last-integer"], "what of a completion is scored"] = "whole",
    max_new_tokens: Annotated[int, Ge(1), Le(65536), "the longest answer, end of sequence included"] = 32,
    length_penalty: Annotated[float, Ge(0), Le(1), "taken off for each character beside the answer's own, 0.5 in all at most"] = 0.0,
    seed: Annotated[int, Ge(0), "of the training items"] = 0,
) -> Task:
    """Ask what a generator of reasoning-gym asks, and score as it scores: ``{use: reasoning-gym, name: chain_sum}``.

    A fifth of all questions are held out, by their hash, so that a small generator too is never trained on what it is measured by.
    """
    try:
        import reasoning_gym as gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError as error:
        raise ValueError("the task 'reasoning-gym' needs reasoning-gym: pip install 'lossary[tasks]'") from error
    if name not in DATASETS:
        raise ValueError(f"reasoning-gym has no generator {name!r}{nearest(name, list(DATASETS))}")
    try:
        asked, held = (gym.create_dataset(name, seed=s, size=SIZE, **params) for s in (seed + 1, 0))
        asked[0]
    except Exception as error:  # every generator has its own ways
        raise ValueError(f"reasoning-gym's {name!r} does not take {dict(params)!r}: {worded(error)}") from error
    return _Generated(asked, held, answer, max_new_tokens, length_penalty)


SIZE = 1_000_000
_TRIES = 64


@dataclass(frozen=True)
class _Asked(Item):
    entry: Any = field(compare=False)


@dataclass(frozen=True)
class _Generated:
    asked: Any
    held: Any
    answer: str
    max_new_tokens: int
    length_penalty: float

    def train_item(self, index: int) -> Item:
        """Return the training item at ``index``: always the same one."""
        for i in range(_TRIES):
            item = _item(self.asked[(index + i * 15_485_863) % SIZE])
            if not _held_out(item):
                return item
        raise ValueError(f"of {_TRIES} questions of reasoning-gym all are held out; its parameters leave too few different ones")

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items, each question once, or all that were found."""
        found: dict[str, Item] = {}
        for i in range(16 * n):
            if len(found) == n:
                break
            item = _item(self.held[i % SIZE])
            if _held_out(item):
                found.setdefault(item.prompt, item)
        return list(found.values())

    def reward(self, item: Item, completion: str) -> float:
        """Return the generator's own score of the completion, or of the last integer in it."""
        assert isinstance(item, _Asked)
        said = whole = completion.strip()
        if self.answer == "last-integer":
            found = _INTEGER.findall(whole)
            said = found[-1] if found else ""
        score = float(self.asked.score_answer(said, item.entry))
        return score * (1 - min(0.5, self.length_penalty * (len(whole) - len(said))))


def _item(entry: Any) -> _Asked:
    return _Asked(str(entry["question"]), str(entry["answer"]), entry)


def _held_out(item: Item) -> bool:
    return hashlib.sha256(item.prompt.encode()).digest()[0] % 5 == 0
