"""The actor's loss piece by piece: what a head needs that makes gradients as soon as it has the logits of a few tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

import torch
from torch import Tensor

from ..batch import Batch
from ..batch.layout import Layout
from ..numerics import accumulator
from ..registry import FIELDS, Level, LossaryError
from .bound import Bound
from .compiled import Graph
from .correcting import WEIGHT
from .memory import Memory
from .metrics import Measure, added, measure
from .outputs import Outputs
from .sides import Side, shown
from .summing import Summand
from .terms import Plan, Term
from .vocabulary import Rows, over_words

READ = ("log_prob", "entropy", "logits")
"""What a head reads off hidden states."""


class Piecewise(Protocol):
    """What a head is given to differentiate."""

    words: bool
    """Whether it wants the logits too."""

    def __call__(self, a: int, b: int, log_prob: Tensor, entropy: Tensor, logits: Tensor | None) -> Tensor:
        """Return the loss of the tokens from ``a`` up to ``b``, 0-d; called once for each piece, in order."""


class Policy(Protocol):
    """Hidden states and the head that reads them: ``head.on(hidden)``."""

    @property
    def dtype(self) -> torch.dtype:
        """In which log-probabilities come."""

    def packed(self, layout: Layout) -> Self:
        """Bring the hidden states into the batch's order."""

    def take(self, tokens: Tensor) -> Self:
        """Return those of some tokens."""

    def scores(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy ``[N]``, differentiable."""

    def passed(self, token_ids: Tensor, loss: Piecewise, factor: float) -> Tensor:
        """Return the loss of all pieces, 0-d, of which ``factor`` times as much is going to be differentiated."""


def local(bound: Bound) -> bool:
    """Whether a component looks at one token at a time and learns through nothing but a head: then it can be run on any few tokens."""
    component = bound.component
    if component.scope != "token" or component.returns not in (None, Level.TOKEN):
        return False
    for name, level, _ in bound.levels:
        if name == "sequences" or level in (Level.SEQUENCE, Level.GROUP):
            return False
        if name in FIELDS and FIELDS[name].differentiable and name not in READ:
            return False
    return True


def passing(plan: Plan) -> tuple[tuple[Term, ...], bool]:
    """Return the terms that a head's one pass does, and whether these are all of the actor's.

    If any other term or rule of the actor looks further than one token, log-probabilities of all tokens come first, and only what reads
    logits is left for the pass.
    """
    actor = tuple(t for t in plan.terms if t.role == "actor")
    rules = all(local(c.bound) for c in plan.corrections if c.when == "loss")
    if rules and all(local(t.bound) for t in actor):
        return actor, True
    return tuple(t for t in actor if over_words(t.bound)), False


class Pieces:
    """Some of the actor's terms over the tokens of a micro-batch, a few at a time; adds up what they come to on the way.

    ``settled`` is what was decided for all tokens beforehand, if the rules that decide need to see them all; ``taken`` was reported then.
    ``graph`` runs the terms of a piece as one, where they look at nothing but its columns.
    """

    def __init__(
        self,
        plan: Plan,
        summands: Sequence[Summand],
        batch: Batch,
        coefficients: Mapping[str, Tensor],
        rows: Mapping[str, Rows],
        memory: Memory,
        settled: Side | None,
        taken: Mapping[str, Measure],
        graph: Graph | None = None,
    ) -> None:
        terms = [s.term for s in summands]
        for t in terms:
            if not local(t.bound):
                raise LossaryError(
                    f"{t.bound.who} reads logits beside what no head gives; call loss(micro, logits=...) instead of policy=."
                )
        self.plan, self.summands, self.terms, self.batch, self.coefficients, self.rows = plan, summands, terms, batch, coefficients, rows
        self.memory, self.settled, self.taken = memory, settled, taken
        self.words = any("logits" in t.bound.reads for t in terms)
        fusible = settled is None and not any(s.words or s.watched for s in summands)
        self.graph = graph if fusible else None
        self.reports: dict[str, Measure] = {}
        self.entropy: list[Measure] = []
        self._values: dict[str, list[Tensor]] = {t.name: [] for t in terms}
        self._seen: dict[str, list[Tensor]] = {s.term.name: [] for s in summands if s.watched}

    def __call__(self, a: int, b: int, log_prob: Tensor, entropy: Tensor, logits: Tensor | None) -> Tensor:
        """Return ``sum over terms of coef * sum over these tokens of weight * loss``."""
        if self.graph is not None:
            return self._fused(self.graph, a, b, log_prob, entropy)
        reports = dict(self.taken)
        side = self._side(a, b, log_prob, entropy, logits, reports)
        total = log_prob.new_zeros((), dtype=accumulator(log_prob))
        for summand in self.summands:
            term, loss = summand.term, summand.loss(side, self.memory, None, reports)
            value = summand.weighed(side, loss)
            self._values[term.name].append(value.detach())
            if term.name in self._seen:
                self._seen[term.name].append(loss.detach())
            total = total + (value if term.coefficient.fixed == 1 else self.coefficients[term.name] * value)
        self.entropy.append(measure(entropy, "entropy"))
        self.reports = added([self.reports, {name: m for name, m in reports.items() if name not in self.taken}])
        return total

    def _fused(self, graph: Graph, a: int, b: int, log_prob: Tensor, entropy: Tensor) -> Tensor:
        reports: dict[str, Measure] = {}
        outputs = Outputs({"log_prob": log_prob, "entropy": entropy}, {})
        fused = graph(self.summands, self.batch.window(a, b), self.coefficients, outputs, reports)
        for name, value in fused.values.items():
            self._values[name].append(value)
        self.entropy.append(reports.pop("actor/entropy"))
        self.reports = added([self.reports, reports])
        return fused.sums["actor"]

    def _side(self, a: int, b: int, log_prob: Tensor, entropy: Tensor, logits: Tensor | None, reports: dict[str, Measure]) -> Side:
        made = {"log_prob": (log_prob, Level.TOKEN), "entropy": (entropy, Level.TOKEN)}
        rows = {n: Rows(r.logits(a, b)) for n, r in self.rows.items()} | ({} if logits is None else {"logits": Rows(logits)})
        batch = self.batch.window(a, b)
        if self.settled is None:
            return shown(self.plan, "actor", batch, made, rows, reports)
        weight, keep = (None if x is None else x[a:b] for x in (self.settled.weight, self.settled.keep))
        if keep is not None:
            made = {n: (torch.where(keep, x, x.detach()), level) for n, (x, level) in made.items()}
            rows = {n: replace(r, keep=keep) for n, r in rows.items()}
        if weight is not None:
            made[WEIGHT] = (weight, Level.TOKEN)
        side = shown(replace(self.plan, corrections=()), "actor", batch, made, rows, reports)
        return replace(side, weight=weight, keep=keep)

    def values(self) -> dict[str, Tensor]:
        """Return what each term came to, before its coefficient; coefficients that follow it are told."""
        for term in self.terms:
            if term.name in self._seen:
                self.memory.observe(term.coefficient.key, torch.cat(self._seen[term.name]), self.batch.sequences, Level.TOKEN)
        return {name: torch.stack(parts).sum() for name, parts in self._values.items()}
