"""Questions and answers from a file of JSON lines, judged by one of a few rewards."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated

from annotated_types import Ge

from ..registry import nearest, task
from .judges import JUDGES, Judge
from .task import Item, Task


@dataclass(frozen=True)
class FromFile:
    """A task over a fixed list of items: an endless shuffle of most of them for training, the others held out."""

    training: tuple[Item, ...]
    held_out: tuple[Item, ...]
    judge: Judge
    max_new_tokens: int
    seed: int

    def train_item(self, index: int) -> Item:
        """Return the item at ``index``: all of them once, in an order of the seed's, then all again in another."""
        round_, place = divmod(index, len(self.training))
        order = list(range(len(self.training)))
        Random(f"order {self.seed} {round_}").shuffle(order)
        return self.training[order[place]]

    def eval_items(self, n: int) -> list[Item]:
        """Return the first ``n`` held-out items."""
        return list(self.held_out[:n])

    def reward(self, item: Item, completion: str) -> float:
        """Return what the judge says."""
        return self.judge(completion, item.answer)


@task
def jsonl(
    *,
    path: Annotated[str, "the file, from the recipe's folder on"],
    reward: Annotated[str, "exact-match, contains or last-number"] = "exact-match",
    max_new_tokens: Annotated[int, Ge(1), "the longest answer, end of sequence included"] = 32,
    prompt: Annotated[str, "the key of the question"] = "prompt",
    answer: Annotated[str, "the key of the answer"] = "answer",
    held_out: Annotated[int, Ge(2), "one question in so many is held out, by its hash"] = 5,
    seed: Annotated[int, "decides the order of the training questions"] = 0,
) -> Task:
    """Ask the questions of a file: one JSON object with ``prompt`` and ``answer`` on each line.

    A line that is none, lacks a key or holds anything but text and numbers is an error that says where. Which questions are held out
    follows from their text alone, so that adding a line moves no other.
    """
    if reward not in JUDGES:
        raise ValueError(f"no reward is called {reward!r}.{nearest(reward, JUDGES)}")
    items = _read(Path(path), prompt, answer)
    aside = [i for i in items if hashlib.sha256(i.prompt.encode()).digest()[0] % held_out == 0]
    training = [i for i in items if i not in set(aside)]
    if not training or not aside:
        raise ValueError(
            f"{path}: {len(items)} questions leave {len(training)} to train on and {len(aside)} held out; expected some of each."
        )
    return FromFile(tuple(training), tuple(aside), JUDGES[reward], max_new_tokens, seed)


def _read(path: Path, prompt: str, answer: str) -> list[Item]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    found: dict[Item, None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}:{number}:{error.colno}: no JSON: {error.msg}") from error
        if not isinstance(row, dict):
            raise ValueError(f"{path}:{number}: {type(row).__name__}; expected an object with {prompt!r} and {answer!r}")
        for key in (prompt, answer):
            if key not in row:
                raise ValueError(f"{path}:{number}: no key {key!r}.{nearest(key, row)}")
            if not isinstance(row[key], str | int | float) or isinstance(row[key], bool):
                raise ValueError(f"{path}:{number}: {key} is {type(row[key]).__name__}; expected text or a number")
        found[Item(str(row[prompt]), str(row[answer]))] = None
    return list(found)
