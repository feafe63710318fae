"""Sums that are too long for a small head, and a calculator beside it: a task of several turns."""

import re
from random import Random
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import task
from .task import ExactMatch, Item, Task, Turn

CALL = re.compile(r"(\d{1,18})\+(\d{1,18})=")


class Calculator(ExactMatch):
    """First a call, ``17+25=``; the calculator's word, ``42>``, stands behind it and carries no loss; then the answer."""

    turns = 2

    def reply(self, item: Item, said: str) -> str | None:
        """Return what the calculator says to a call; None to anything else, which is then the answer."""
        call = CALL.fullmatch(said)
        return None if call is None else f"{int(call[1]) + int(call[2])}>"

    def demonstration(self, item: Item) -> list[Turn]:
        """Return how it is done."""
        call = item.prompt.removesuffix("?") + "="
        return [Turn(call), Turn(f"{item.answer}>", observed=True), Turn(item.answer)]


@task
def calculator(
    *,
    digits: Annotated[int, Ge(1), Le(12), "the digits of a summand"] = 3,
    seed: Annotated[int, "decides the order of the training sums"] = 0,
) -> Task:
    """Answer ``17+25?`` with the help of a calculator: write ``17+25=``, read ``42>``, write ``42``.

    What the calculator says is part of the response, and no term sees it: the mask of such a response has a hole. The reward is 1 for the
    right number in the last turn, with or without a call.
    """

    def draw(stream: Random) -> Item:
        a, b = (stream.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
        return Item(f"{a}+{b}?", str(a + b))

    def summands(item: Item) -> str:
        return "+".join(sorted(item.prompt.removesuffix("?").split("+")))

    return Calculator(draw, key=summands, max_new_tokens=2 * digits + 3, seed=seed)
