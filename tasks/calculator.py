"""A task with a tool: the policy may write a product followed by ``=``, and a calculator goes on with the result."""

import re
from dataclasses import dataclass
from random import Random
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import task
from .task import ExactMatch, Item, Task

_CALL = re.compile(r"(\d{1,6})\*(\d{1,6})=")


@task
def calculator(
    *,
    digits: Annotated[int, Ge(1), Le(4), "the most digits of a factor"] = 2,
    seed: Annotated[int, "decides the order of the training products"] = 0,
) -> Task:
    """Multiply two numbers, by heart or by tool: after ``12*34=`` and an end of sequence, the calculator writes ``408>``.

    ``12*34?`` is answered by ``408``. What the calculator wrote is read by the policy and carries no loss; a call that is no product
    of two numbers is not answered, and is then the answer, a wrong one.
    """

    def draw(stream: Random) -> Item:
        a, b = stream.randrange(10**digits), stream.randrange(10**digits)
        return Item(f"{a}*{b}?", str(a * b))

    def factors(item: Item) -> str:
        return "*".join(sorted(item.prompt.removesuffix("?").split("*")))

    # A call, its end, the result with its mark, the answer, its end.
    room = (2 * digits + 2) + 1 + (2 * digits + 1) + 2 * digits + 1
    return _Calculator(draw, factors, room, seed)


@dataclass(frozen=True)
class _Calculator(ExactMatch):
    def observe(self, item: Item, said: str) -> str | None:
        """Return the result of the product that was written, if one was."""
        call = _CALL.fullmatch(said)
        return f"{int(call[1]) * int(call[2])}>" if call else None
