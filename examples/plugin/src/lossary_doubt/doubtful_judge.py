"""doubtful-judge: a task whose grader errs, and knows how often; what the rest of this package can be tried on."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from lossary import task
from lossary.registry.hyper import Fraction
from lossary.tasks import ExactMatch, Item, Task, spell_backward


@dataclass(frozen=True)
class DoubtfulJudge:
    """Another task, graded by somebody who flips a coin instead of looking, the more often the longer the answer is."""

    honest: Task
    noise: float
    max_letters: int
    columns: Mapping[str, Callable[[Item, str], float]] = field(init=False)
    """What the bundled trainer asks for each answer beside its reward: the column ``trust``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", {"trust": self.trust})

    @property
    def max_new_tokens(self) -> int:
        return self.honest.max_new_tokens

    def train_item(self, index: int) -> Item:
        return self.honest.train_item(index)

    def eval_items(self, n: int) -> list[Item]:
        return self.honest.eval_items(n)

    def trust(self, item: Item, completion: str) -> float:
        """Return how often the judge looks: what it says of itself."""
        return 1 - self.noise * len(item.answer) / self.max_letters

    def reward(self, item: Item, completion: str) -> float:
        """Return the honest reward, or that of a coin; the same answer always gets the same grade."""
        draw = hashlib.sha256(f"{item.prompt} {completion}".encode()).digest()
        looks = int.from_bytes(draw[:4], "big") / 2**32 < self.trust(item, completion)
        return self.honest.reward(item, completion) if looks else float(draw[4] & 1)


@task
def doubtful_judge(
    *,
    noise: Annotated[Fraction, "how often the longest answers are graded by a coin; shorter ones in proportion"] = 0.5,
    min_letters: Annotated[int, "length of the shortest words"] = 3,
    max_letters: Annotated[int, "length of the longest words"] = 6,
) -> Task:
    """Spell an English word backward for a judge who does not always look, and says how often: the column ``trust``.

    The held-out accuracy is honest, so what the noise costs can be seen: compare ``grpo`` with ``trusted-baseline``.
    """
    honest: ExactMatch = spell_backward(min_letters=min_letters, max_letters=max_letters)  # type: ignore[assignment]
    return DoubtfulJudge(honest, noise, max_letters)
