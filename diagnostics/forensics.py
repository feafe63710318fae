r"""Where a step's gradient comes from: by term, and as the effective weight of each token, which loss modes can be compared by.

Terms are compared by their Gram matrix :math:`G_{kl} = \langle g_k, g_l \rangle`, and weights by sums over buckets of tokens: both add up over
micro-batches and ranks, so everything read off them is exact. :math:`\text{share}_k = \sum_l G_{kl} / \sum_{kl} G_{kl}`, which may be negative and adds up to 1.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..pipeline import LossOut, Objective
from ..registry import LossaryError
from .running import Share, coefficient_in, shares
from .weights import Buckets, effective_weights

TRUNK = ("actor", "critic")


@dataclass(frozen=True)
class Gram:
    """Inner products of the terms' gradients on one thing: a column of the model, or parameters."""

    names: tuple[str, ...]
    roles: tuple[str, ...]
    products: Tensor
    """``[K, K]``, float64."""
    size: int
    """Numbers in each gradient."""

    def norm(self, name: str) -> float:
        """Return the length of one term's gradient."""
        return math.sqrt(max(float(self.products[self._at(name), self._at(name)]), 0.0))

    @property
    def total_norm(self) -> float:
        """The length of all terms' gradient together."""
        return math.sqrt(max(float(self.products.sum()), 0.0))

    def share(self, name: str) -> float | None:
        """Return which part of the total gradient one term is; None where the total is 0."""
        total = float(self.products.sum())
        return float(self.products[self._at(name)].sum()) / total if total > 0 else None

    def cosine(self, a: str, b: str) -> float | None:
        """Return the cosine between two terms' gradients; None where one of them is 0."""
        return self._cosine([self._at(a)], [self._at(b)])

    @property
    def conflict(self) -> float | None:
        """The cosine between all actor terms and all critic terms: below 0 they pull a shared trunk apart."""
        actor, critic = ([i for i, r in enumerate(self.roles) if r == role] for role in TRUNK)
        return self._cosine(actor, critic) if actor and critic else None

    def _cosine(self, a: list[int], b: list[int]) -> float | None:
        def product(x: list[int], y: list[int]) -> float:
            return float(self.products[x][:, y].sum())

        size = math.sqrt(max(product(a, a), 0.0) * max(product(b, b), 0.0))
        return max(-1.0, min(1.0, product(a, b) / size)) if size > 0 else None

    def _at(self, name: str) -> int:
        if name not in self.names:
            raise LossaryError(f"there is no term {name!r}; the gradients are those of {', '.join(self.names)}.")
        return self.names.index(name)

    def __add__(self, other: "Gram") -> "Gram":
        """Return the products of both together, where no number of a gradient is in both."""
        if self.names != other.names:
            raise LossaryError(f"gradients of {', '.join(self.names)} and of {', '.join(other.names)} do not add up.")
        return Gram(self.names, self.roles, self.products + other.products, self.size + other.size)


@dataclass(frozen=True)
class Forensics:
    """What one batch's gradient is made of; ``a + b`` is that of two micro-batches together."""

    columns: Mapping[str, Gram]
    """By the model's column, as ``log_prob``."""
    weights: Buckets | None
    """The effective weights of the policy term; None without one."""

    def __add__(self, other: "Forensics") -> "Forensics":
        """Return the forensics of both micro-batches."""
        weights = self.weights + other.weights if self.weights is not None and other.weights is not None else None
        return Forensics({n: g + other.columns[n] for n, g in self.columns.items()}, weights)


def forensics(objective: Objective, batch: Batch, columns: Mapping[str, Tensor]) -> Forensics:
    """Return what the gradient on the model's columns is made of, without any pass of the model.

    ``batch`` is weighed, or a micro-batch of one that was; results of micro-batches are added.
    """
    packed = {n: x if n == "log_z" else batch.layout.pack(x, n) for n, x in columns.items()}
    return dissect(batch, shares(objective, batch, packed))


def dissect(batch: Batch, made: Sequence[Share]) -> Forensics:
    """Return the forensics of terms that were run already."""
    names = tuple(s.term.name for s in made)
    roles = tuple(s.term.role for s in made)
    grams = {}
    for column in made[0].gradients if made else ():
        g = torch.stack([s.gradients[column].flatten() for s in made]).double()
        grams[column] = Gram(names, roles, g @ g.T, g.shape[1])
    policy = next((s for s in made if s.term.bound.component.kind.name == "policy_loss"), None)
    return Forensics(grams, None if policy is None else effective_weights(batch, policy))


class OnParameters:
    """Terms' gradients on chosen parameters, summed over the micro-batches of a step: ``add`` each loss, then read ``gram()``.

    Unlike ``forensics`` it costs a backward pass per term, and only here terms of different columns, as policy and entropy, or actor and
    critic on a shared trunk, can be compared.
    """

    def __init__(self, objective: Objective, parameters: Iterable[Tensor]) -> None:
        self.terms = objective.plan.terms
        self.parameters = [p for p in parameters if p.requires_grad]
        self._sums = [[torch.zeros_like(p) for p in self.parameters] for _ in self.terms]
        if not self.parameters:
            raise LossaryError("none of the parameters learns, so no gradient reaches them.")

    def add(self, batch: Batch, out: LossOut) -> None:
        """Add one micro-batch, before its ``backward``; a loss that a head's one pass did keeps no graph and raises ``LossaryError``."""
        for term, sums in zip(self.terms, self._sums, strict=True):
            value = out.terms[term.name]
            if not value.requires_grad:
                raise LossaryError(
                    f"term {term.name!r} has no graph: the head's one pass keeps none. Give the loss log_prob and entropy instead."
                )
            found = torch.autograd.grad(coefficient_in(term, batch) * value, self.parameters, retain_graph=True, allow_unused=True)
            for total, g in zip(sums, found, strict=True):
                if g is not None:
                    total += g

    def gram(self) -> Gram:
        """Return the inner products of the step's gradients so far."""
        g = torch.stack([torch.cat([x.flatten() for x in sums]).double() for sums in self._sums])
        return Gram(tuple(t.name for t in self.terms), tuple(t.role for t in self.terms), g @ g.T, g.shape[1])
