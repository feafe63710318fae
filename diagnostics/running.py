"""One loss run again from columns that were kept: the whole of it, or term by term with each token's share."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..batch import Batch
from ..pipeline import Objective
from ..pipeline.metrics import Measure
from ..pipeline.outputs import Outputs
from ..pipeline.sides import Side, side_of
from ..pipeline.summing import summand
from ..pipeline.terms import Term
from ..registry import FIELDS, Level, LossaryError

LEARN = tuple(name for name, c in FIELDS.items() if c.differentiable)
"""What a gradient reaches."""


@dataclass(frozen=True)
class Result:
    """What one loss came to. ``gradients`` are of the total, by the model's column."""

    total: Tensor
    terms: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Share:
    """One term of one batch: what each of its tokens, sequences or groups came to, and what it asks of the model."""

    term: Term
    side: Side
    loss: Tensor
    """At ``level``, before any weight."""
    level: Level
    coefficient: Tensor | float
    value: Tensor
    """The term's share of the step's mean, before its coefficient."""
    gradients: Mapping[str, Tensor]
    """Of ``coefficient * value``, by the model's column, over all tokens of the batch."""
    reports: Mapping[str, Measure]
    batch: Batch

    @cached_property
    def where(self) -> Tensor:
        """``[N']``: where the side's tokens lie in the batch."""
        if self.term.role == "actor" and self.batch.kept is not None:
            return self.batch.kept_tokens
        return torch.arange(self.batch.sequences.index.shape[0], device=self.batch.rows.device)

    def per_token(self, tokens: int) -> Tensor:
        """``[N]``: each token's contribution to the total: coefficient, weight and loss multiplied; 0 where the term does not see it."""
        sequences, loss, weight = self.side.view.sequences, self.loss.detach(), self.side.batch.weights[self.term.aggregation]
        if self.level is Level.GROUP:
            loss = sequences.group_spread(loss)
        if self.level is not Level.TOKEN:
            loss = sequences.spread(loss)
        if self.term.corrected and self.side.weight is not None:
            weight = weight * self.side.weight
        if self.side.keep is not None:
            weight = torch.where(self.side.keep, weight, 0.0)
        said = torch.where(weight != 0, self.coefficient * weight * loss, 0.0)
        return said.new_zeros(tokens).index_copy(0, self.where, said)


def fresh(objective: Objective) -> Objective:
    """Return an objective in the same state that runs alone and eagerly: what it is asked leaves no trace in the other."""
    made = Objective(replace(objective.plan, compile=False), seed=objective.seed, chunk_tokens=objective.chunk_tokens)
    made.load_state_dict(objective.state_dict())
    return made


def leaves_of(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the model's columns cut from whatever made them, those that learn with a gradient of their own."""
    return {n: x.detach().requires_grad_(n in LEARN) for n, x in outputs.items()}


def rerun(objective: Objective, batch: Batch, outputs: Mapping[str, Tensor], generator: Tensor | None = None) -> Result:
    """Return loss, gradients and metrics of a weighed batch, the same to the last bit each time.

    ``generator`` is the state of torch's generator, for a component that draws from it though none should.
    """
    alone, leaves = fresh(objective), leaves_of(outputs)
    with torch.random.fork_rng(devices=()), torch.enable_grad():
        if generator is not None:
            torch.random.set_rng_state(generator)
        out = alone.loss(batch, **leaves)  # type: ignore[arg-type]
        learning = {n: x for n, x in leaves.items() if x.requires_grad}
        found = _gradients([out.total] if out.total.requires_grad else [], list(learning.values()))
    return Result(
        out.total.detach(),
        {n: x.detach() for n, x in out.terms.items()},
        dict(zip(learning, found, strict=True)),
        alone.metrics(out, batch),
    )


def shares(objective: Objective, batch: Batch, outputs: Mapping[str, Tensor]) -> list[Share]:
    """Return every term of a weighed batch by itself, at the widest look there is: nothing is fused, nothing reduced."""
    return _shares(objective, objective.plan.terms, batch, outputs)


def share(objective: Objective, term: Term, batch: Batch, outputs: Mapping[str, Tensor]) -> Share:
    """Return one term of a weighed batch."""
    return _shares(objective, [term], batch, outputs)[0]


def _shares(objective: Objective, terms: Iterable[Term], batch: Batch, outputs: Mapping[str, Tensor]) -> list[Share]:
    """Run terms forward one by one and backward together. Each has leaves of its own, so that their gradients stay apart."""
    if batch.totals is None:
        raise LossaryError("this batch was not weighed: its tokens have no weight yet.")
    forward, asked, leaves = list[Share](), list[Tensor](), list[Tensor]()
    with torch.enable_grad():
        for term in terms:
            own, reports = leaves_of(outputs), dict[str, Measure]()
            side = side_of(objective.plan, term.role, batch, Outputs.of({**dict.fromkeys(LEARN), **own}, batch, {}), {})
            part = summand(term)
            loss = part.loss(side, objective.memory, objective.chunk_tokens, reports)
            value, coefficient = part.weighed(side, loss), coefficient_in(term, batch)
            if value.requires_grad:
                asked.append(coefficient * value)
            leaves += [x for x in own.values() if x.requires_grad]
            forward.append(Share(term, side, loss, part.level, coefficient, value.detach(), {}, reports, batch))
        found = iter(_gradients(asked, leaves))
    learning = [n for n in outputs if n in LEARN]
    return [replace(one, gradients={n: next(found) for n in learning}) for one in forward]


def coefficient_in(term: Term, batch: Batch) -> Tensor | float:
    """Return what multiplies a term in this step."""
    return 1.0 if term.coefficient.fixed == 1 else batch.coefficients[term.name]


def _gradients(values: Sequence[Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """Return the gradient of all values together, 0 where a leaf is in none of them."""
    if not values or not leaves:
        return [torch.zeros_like(x) for x in leaves]
    found = torch.autograd.grad(values, leaves, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
