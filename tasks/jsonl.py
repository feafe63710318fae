"""Prompts from a file of JSON lines, scored by a reward function that is chosen by name."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Final

from annotated_types import Ge, Le

from ..registry import UnknownName, function_at, nearest, task
from .task import Item, Task

Reward = Callable[[str, str], float]
"""Of a completion and the right answer."""

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def exact(completion: str, answer: str) -> float:
    """1 for the answer and nothing else, spaces around it aside."""
    return float(completion.strip() == answer.strip())


def contains(completion: str, answer: str) -> float:
    """1 where the answer stands anywhere in the completion."""
    return float(answer.strip() in completion)


def last_number(completion: str, answer: str) -> float:
    """1 where the last number of the completion is the answer; thousands may have commas."""
    found = _NUMBER.findall(completion.replace(",", ""))
    return float(bool(found) and float(found[-1]) == float(answer.replace(",", "")))


REWARDS: Final[Mapping[str, Reward]] = {"exact": exact, "contains": contains, "last-number": last_number}


@task
def jsonl(
    *,
    path: Annotated[str, "a file of JSON lines, relative to the recipe"],
    reward: Annotated[str, "exact, contains, last-number, or module:function of a completion and the answer"] = "exact",
    held_out: Annotated[str | None, "a file of held-out lines; null: a fifth of the lines, by their hash"] = None,
    prompt_key: Annotated[str, "the key of the question"] = "prompt",
    answer_key: Annotated[str, "the key of the answer"] = "answer",
    max_new_tokens: Annotated[int, Ge(1), Le(65536), "the longest answer, end of sequence included"] = 32,
    seed: Annotated[int, "of the training lines' order"] = 0,
) -> Task:
    """Ask the questions of a file, one ``{"prompt": ..., "answer": ...}`` a line, in a new order every epoch."""
    score = _reward(reward)
    lines = _read(Path(path), prompt_key, answer_key, score if reward == "last-number" else None)
    if held_out is not None:
        asked, kept = lines, _read(Path(held_out), prompt_key, answer_key, None)
        both = {i.prompt for i in asked} & {i.prompt for i in kept}
        if both:
            raise ValueError(f"{held_out} and {path} share {len(both)} questions, as {min(both)[:40]!r}: held out means not trained on")
    else:
        kept, asked = [i for i in lines if _apart(i)], [i for i in lines if not _apart(i)]
        if not kept or not asked:
            raise ValueError(f"{path} has {len(lines)} lines, too few to hold a fifth of them out; give held_out")
    return _Lines(asked, kept, score, max_new_tokens, seed)


@dataclass(frozen=True)
class _Lines:
    asked: list[Item]
    kept: list[Item]
    score: Reward
    max_new_tokens: int
    seed: int

    def train_item(self, index: int) -> Item:
        """Return the training item at ``index``: always the same one."""
        epoch, place = divmod(index, len(self.asked))
        return self.asked[Random(f"{self.seed} {epoch}").sample(range(len(self.asked)), len(self.asked))[place]]

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items, or all where there are fewer."""
        return self.kept[:n]

    def reward(self, item: Item, completion: str) -> float:
        """Score a completion by the chosen function."""
        return float(self.score(completion, item.answer))


def _reward(name: str) -> Reward:
    found = REWARDS.get(name.replace("_", "-"))
    if found is not None:
        return found
    if ":" not in name:
        raise ValueError(f"there is no reward {name!r}{nearest(name, REWARDS)}; a function of yours is named module:function")
    try:
        return function_at(name)
    except UnknownName as error:
        raise ValueError(f"the reward {error}") from error


def _read(path: Path, prompt_key: str, answer_key: str, check: Reward | None) -> list[Item]:
    try:
        texts = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    items: dict[str, Item] = {}
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}:{error.colno}: no JSON: {error.msg}") from None
        if not isinstance(line, dict):
            raise ValueError(f"{path}:{number}: expected an object with {prompt_key!r} and {answer_key!r}")
        for key in (prompt_key, answer_key):
            if key not in line:
                raise ValueError(f"{path}:{number}: has no {key!r}{nearest(key, map(str, line))}")
            if not isinstance(line[key], (str, int, float)):
                raise ValueError(f"{path}:{number}: {key!r} is {type(line[key]).__name__}; expected text or a number")
        item = Item(str(line[prompt_key]), str(line[answer_key]))
        if items.setdefault(item.prompt, item) != item:
            raise ValueError(f"{path}:{number}: the question {item.prompt[:40]!r} was answered otherwise above")
        if check is not None:
            try:
                check("0", item.answer)
            except ValueError:
                raise ValueError(f"{path}:{number}: the answer {item.answer[:40]!r} is no number, which last-number compares") from None
    if not items:
        raise ValueError(f"{path} has no lines: a task needs questions")
    return list(items.values())


def _apart(item: Item) -> bool:
    return hashlib.sha256(item.prompt.encode()).digest()[0] % 5 == 0
