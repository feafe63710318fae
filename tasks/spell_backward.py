"""Spell a word backward."""

from importlib.resources import files
from random import Random
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import task
from .task import ExactMatch, Item, Task


@task
def spell_backward(
    *,
    min_letters: Annotated[int, Ge(3), Le(12), "length of the shortest words"] = 3,
    max_letters: Annotated[int, Ge(3), Le(12), "length of the longest words"] = 6,
    seed: Annotated[int, "decides the order of the training words"] = 0,
) -> Task:
    """Spell an English word backward: ``cat>``, spaces before it, is answered by ``tac``.

    Parameters
    ----------
    min_letters, max_letters
        The shortest and the longest word; the bundled list has words of 3 to 12 letters. Each length is equally likely.
    seed
        Of the training words' order.
    """
    if min_letters > max_letters:
        raise ValueError(f"min_letters={min_letters} is above max_letters={max_letters}")
    by_length: dict[int, list[str]] = {length: [] for length in range(min_letters, max_letters + 1)}
    for word in (files("lossary.tasks") / "words.txt").read_text("utf-8").split():
        if len(word) in by_length:
            by_length[len(word)].append(word)

    def draw(stream: Random) -> Item:
        # Each length as often as any other: one that a warm-up hardly saw would never be right, and so never be learned.
        word = stream.choice(by_length[stream.randint(min_letters, max_letters)])
        # Right-aligned: the nth letter to say then stands in one place whatever the length, one rule to learn instead of one per
        # length. Left-aligned, rewards for some lengths undo what the warm-up taught of the others, which then stay at 0.
        return Item(f"{word:>{max_letters}}>", word[::-1])

    return ExactMatch(draw, key=lambda item: item.answer, max_new_tokens=max_letters + 1, seed=seed)
