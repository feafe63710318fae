"""Add two numbers."""

from random import Random
from typing import Annotated

from annotated_types import Ge, Le

from ..registry import task
from .task import ExactMatch, Item, Task


@task
def add_numbers(
    *,
    digits: Annotated[int, Ge(1), Le(12), "the most digits of a summand"] = 2,
    seed: Annotated[int, "decides the order of the training sums"] = 0,
) -> Task:
    """Add two numbers: ``7+35=`` is answered by ``42``.

    Parameters
    ----------
    digits
        The most digits of a summand.
    seed
        Of the training sums' order.
    """

    def draw(stream: Random) -> Item:
        a, b = stream.randrange(10**digits), stream.randrange(10**digits)
        return Item(f"{a}+{b}=", str(a + b))

    def summands(item: Item) -> str:
        # a+b and b+a are one sum: holding out only one of them would hold out nothing.
        return "+".join(sorted(item.prompt.removesuffix("=").split("+")))

    return ExactMatch(draw, key=summands, max_new_tokens=digits + 2, seed=seed)
