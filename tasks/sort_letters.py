"""Sort letters."""

from random import Random
from string import ascii_lowercase
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import task
from .task import ExactMatch, Item, Task


@task
def sort_letters(
    *,
    letters: Annotated[int, Ge(2), Le(24), "how many letters there are to sort"] = 5,
    seed: Annotated[int, "decides the order of the training items"] = 0,
) -> Task:
    """Sort letters: ``cab:`` is answered by ``abc``.

    Parameters
    ----------
    letters
        How many there are to sort; some may be equal.
    seed
        Of the training items' order.
    """

    def draw(stream: Random) -> Item:
        drawn = stream.choices(ascii_lowercase, k=letters)
        return Item(f"{''.join(drawn)}:", "".join(sorted(drawn)))

    # By answer, not by prompt: no held-out answer is ever seen in training, in any order of its letters.
    return ExactMatch(draw, key=lambda item: item.answer, max_new_tokens=letters + 1, seed=seed)
