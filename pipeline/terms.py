"""The parts of an objective: terms with their coefficient and aggregation, and what is estimated before them."""

from dataclasses import dataclass
from functools import cached_property

from .bound import Bound
from .correcting import WEIGHT

METRIC = {"policy": "pg_loss", "value": "vf_loss"}


@dataclass(frozen=True)
class Coefficient:
    """The number that multiplies a term: fixed, or a component that may keep state."""

    key: str
    fixed: float | None
    bound: Bound | None = None

    @property
    def off(self) -> bool:
        """Whether it is 0 once and for all."""
        return self.fixed == 0


@dataclass(frozen=True)
class Term:
    """One summand of the loss: ``coef * sum over tokens of weight * loss``."""

    name: str
    role: str
    """``"actor"`` or ``"critic"``."""
    bound: Bound
    coefficient: Coefficient
    aggregation: str

    @cached_property
    def metric(self) -> str:
        """Under which name its value is logged."""
        return f"{self.role}/{METRIC.get(self.name, f'{self.name}_loss')}"

    @cached_property
    def corrected(self) -> bool:
        """Whether the weights of corrections multiply it: a policy loss that does not do so itself."""
        return self.bound.component.kind.name == "policy_loss" and WEIGHT not in self.bound.reads

    @cached_property
    def metric_of_coefficient(self) -> str:
        """Under which name its coefficient is logged."""
        return f"{self.role}/{self.name}_coef"


@dataclass(frozen=True)
class RewardKL:
    """A KL estimate between the old policy and the reference, taken from the reward of each token."""

    name: str
    bound: Bound
    coefficient: Coefficient
    path: tuple[str | int, ...]


@dataclass(frozen=True)
class Correction:
    """A rule that weighs or drops tokens of the actor's terms."""

    bound: Bound
    when: str
    """``"estimate"``; where it reads the current policy, ``"measure"`` or ``"loss"``."""


@dataclass(frozen=True)
class Plan:
    """Everything that a recipe asked for, resolved."""

    name: str
    terms: tuple[Term, ...]
    rewards: tuple[Bound, ...]
    reward_kl: tuple[RewardKL, ...]
    filters: tuple[Bound, ...]
    advantages: tuple[Bound, ...]
    corrections: tuple[Correction, ...]
    denominator: str
    """``"kept"``: the actor's means are over the tokens that corrections left; ``"original"``: over all."""
    aggregations: dict[str, Bound]
    old_log_prob: str
    empty: str
    approximate: str | None
    scope: str
    compile: bool
    """Whether the terms run as one compiled graph."""
    notes: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def bounds(self) -> tuple[Bound, ...]:
        """Every component that runs, with its settings."""
        summed: tuple[Term | RewardKL, ...] = (*self.terms, *self.reward_kl)
        terms = [b for t in summed for b in (t.bound, t.coefficient.bound) if b is not None]
        return (*self.rewards, *self.filters, *self.advantages, *(c.bound for c in self.corrections), *terms, *self.aggregations.values())
