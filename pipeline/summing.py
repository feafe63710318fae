"""A term's share of a micro-batch: its loss, weighed and added up. What a recipe fixes is looked up once, when it is composed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..numerics import accumulator
from ..registry import ColumnError, Level
from .bound import scalar_like
from .memory import Watch
from .metrics import Measure, measure
from .sides import Side
from .terms import Term
from .vocabulary import in_chunks, over_words

Reports = dict[str, Measure]


@dataclass(frozen=True)
class Summand:
    """A term as two closures, with all that can be known of it before a step."""

    term: Term
    loss: Callable[[Side, Watch, int | None, Reports], Tensor]
    """The loss of each token, sequence or group of a side; what it reports goes under its role. Without a chunk's size the logits are
    there, and are few."""
    weighed: Callable[[Side, Tensor], Tensor]
    """The weighted sum of such losses."""
    level: Level
    watched: bool
    """Whether its coefficient wants to know what it came to."""
    words: bool
    """Whether it reads logits."""

    def __call__(self, side: Side, memory: Watch, chunk: int, reports: Reports) -> Tensor:
        """Return the term's share of the step's mean, before its coefficient."""
        loss = self.loss(side, memory, chunk, reports)
        if self.watched:
            memory.observe(self.term.coefficient.key, loss, side.batch.sequences, self.level)
        return self.weighed(side, loss)


def summand(term: Term) -> Summand:
    """Resolve a term."""
    level, follows = term.bound.component.returns or Level.TOKEN, term.coefficient.bound
    watched = follows is not None and "measured" in follows.reads
    return Summand(term, _loss(term, level), _weighed(term, level), level, watched, over_words(term.bound))


def _loss(term: Term, level: Level) -> Callable[[Side, Watch, int | None, Reports], Tensor]:
    bound, role, name = term.bound, term.role, term.name
    who, reads, words, times = bound.who, bound.reads, over_words(bound), "step" in bound.reads

    def learns(side: Side) -> bool:
        return bound.learns(side.view) or any(rows.requires_grad for n, rows in side.rows.items() if n in reads)

    def loss(side: Side, memory: Watch, chunk: int | None, reports: Reports) -> Tensor:
        view = replace(side.view, step=scalar_like(memory.step, side.batch.rows)) if times else side.view
        measured: Mapping[str, Measure] = {}
        if words:
            found, measured = in_chunks(bound, view, side.rows, chunk)
        else:
            result, report = bound.split(bound(view))
            found = bound.shaped(result, view, level)
            if report:
                measured = {key: measure(x, who) for key, x in report.items()}
        if not found.requires_grad and torch.is_grad_enabled() and learns(side):
            raise ColumnError(f"{who} returned a loss without a gradient, though the model's output has one; was it detached?")
        for key, m in measured.items():
            told = f"{role}/{key}"
            reports[f"{role}/{name}_{key}" if told in reports else told] = m  # two terms may measure the same thing of different columns
        return found

    return loss


def _weighed(term: Term, level: Level) -> Callable[[Side, Tensor], Tensor]:
    corrected, aggregation, tokens = term.corrected, term.aggregation, level is Level.TOKEN

    def weighed(side: Side, loss: Tensor) -> Tensor:
        factor, keep = side.weight if corrected else None, side.keep
        if tokens and factor is None and keep is None:  # the common case: nothing changes them between two terms
            common = side.batch.common_weight(aggregation)
            if common is not None:  # one product instead of one for each token
                return common * loss.sum(dtype=accumulator(loss))
            return (side.batch.weights_in(loss.dtype, aggregation) * loss).sum(dtype=accumulator(loss))
        sequences, weight = side.batch.sequences, side.batch.weights[aggregation]
        if factor is not None:
            weight = weight * factor
        if keep is not None:
            weight = torch.where(keep, weight, 0.0)
        if not tokens:
            weight = sequences.sum(weight)
            if level is Level.GROUP:
                weight = sequences.group_sum(weight)
        if not tokens or keep is not None:
            loss = torch.where(weight != 0, loss, 0.0)  # what has no tokens has no say, whatever was computed for it
        return (weight.to(loss.dtype) * loss).sum(dtype=accumulator(loss))

    return weighed
