"""What a result depends on: never on order, never on more than the declared scope, never on how a step was cut."""

from itertools import accumulate
from threading import BrokenBarrierError

import torch
from torch import Tensor

from ..batch import SimulatedRanks
from ..registry import Component, Level
from .case import Case
from .check import Rule
from .subject import LOSSES, Off, Result, Subject, totals_of, uneven

ESTIMATES = ("advantage", "reward", "filter", "correction", "aggregation")
"""Kinds that run on a whole step, whose statistics reach over ranks."""


def _cut(component: Component) -> bool:
    return component.kind.columns and component.kind.name != "coefficient" and component.scope != "step"


def _ordered(component: Component) -> bool:
    return component.kind.columns and component.kind.name != "coefficient"


def _reaches(component: Component) -> bool:
    return component.kind.name in ESTIMATES and not {"log_prob", "entropy"} & set(component.columns)


def _permutation(subject: Subject, case: Case) -> None:
    n = len(case.lengths)
    order = [(i * 3 + 1) % n for i in range(n)] if n % 3 else list(range(n))[::-1]
    moved = case.take(order)
    tokens = case.places_of(order)
    if learns(subject):
        want, slopes = subject.gradients(case)
        (part,) = want.parts.values()
        weights = _moved(uneven(part.x), part.level, order, tokens)
        got, other = subject.gradients(moved, weights)
    else:
        want, got = subject.run(subject.inputs(case)), subject.run(subject.inputs(moved))
        slopes, other = {}, {}
    for name, part in want.parts.items():
        _equal(name, _moved(part.x, part.level, order, tokens), got.parts[name].x, "in another order")
    for name, g in slopes.items():
        level = case.levels[name]
        _equal(f"the gradient by {name}", _moved(g, level, order, tokens), other[name], "in another order")


def _moved(x: Tensor, level: Level, order: list[int], tokens: Tensor) -> Tensor:
    if level in (Level.TOKEN, Level.VOCAB):
        return x[tokens]
    return x[torch.tensor(order, dtype=torch.long)] if level is Level.SEQUENCE else x


def learns(subject: Subject) -> bool:
    """Whether its gradient counts."""
    return subject.component.kind.name in LOSSES


def _scope(subject: Subject, case: Case) -> None:
    totals = totals_of(subject.inputs(case).sequences)
    scope = subject.component.scope
    want, slopes = subject.gradients(case, totals=totals) if learns(subject) else (subject.run(subject.inputs(case, totals=totals)), {})
    parts: list[tuple[Case, list[int] | None, Tensor]] = []
    if scope == "token" and all(p.level is Level.TOKEN for p in want.parts.values()):
        size = max(3, case.tokens // 4)
        cuts = [(a, min(a + size, case.tokens)) for a in range(0, case.tokens, size)]
        parts += [(case.cut(a, b), None, torch.arange(a, b)) for a, b in cuts]
    else:
        together = case.members() if scope == "group" else [[i] for i in range(len(case.lengths))]
        parts += [(case.take(chosen), chosen, case.places_of(chosen)) for chosen in together]
    order = sorted(set(case.groups))
    for k, (part_case, sequences, tokens) in enumerate(parts):
        inside = sequences or []
        where = {
            Level.TOKEN: tokens,
            Level.VOCAB: tokens,
            Level.SEQUENCE: torch.tensor(inside, dtype=torch.long),
            Level.GROUP: torch.tensor(sorted({order.index(case.groups[i]) for i in inside}), dtype=torch.long),
        }
        if learns(subject):
            (whole,) = want.parts.values()
            got, other = subject.gradients(part_case, uneven(whole.x)[where[whole.level]], totals=totals)
        else:
            got, other = subject.run(subject.inputs(part_case, totals=totals)), {}
        alone = f"of part {k + 1} of {len(parts)} on its own"
        for name, p in want.parts.items():
            _equal(name, p.x[where[p.level]], got.parts[name].x, alone)
        for name, g in slopes.items():
            if case.levels[name] in (Level.TOKEN, Level.VOCAB) or sequences is not None:
                _equal(f"the gradient by {name}", g[where[case.levels[name]]], other[name], alone)


def _ranks(subject: Subject, case: Case) -> None:
    n = len(case.lengths)
    if n < 2:
        return
    totals = totals_of(subject.inputs(case).sequences)
    want = subject.run(subject.inputs(case, totals=totals))
    for sizes in ([n // 2, n - n // 2], [1, n - 1, 0][: 2 if n < 3 else 3]):
        sizes = [s for s in sizes if s]
        ends = list(accumulate(sizes))
        shares = [list(range(e - s, e)) for s, e in zip(sizes, ends, strict=True)]

        def work(ranks: SimulatedRanks, rank: int, shares: list[list[int]] = shares) -> Result | Off:
            try:
                return subject.run(subject.inputs(case.take(shares[rank]), ranks=ranks, totals=totals))
            except Off as off:
                if isinstance(off.__cause__, BrokenBarrierError):  # another rank did not come
                    raise off.__cause__ from None
                return off

        try:
            found = SimulatedRanks.run(len(sizes), work, timeout=10)
        except RuntimeError as error:
            raise Off("the same reductions on every rank", str(error), "a reduction in a branch that only some ranks take") from error
        for result in found:
            if isinstance(result, Off):
                raise result
        results = [r for r in found if isinstance(r, Result)]
        for name, part in want.parts.items():
            _equal(name, part.x, torch.cat([r.parts[name].x for r in results]), f"over {len(sizes)} ranks")


def _equal(name: str, want: Tensor, got: Tensor, how: str) -> None:
    if want.shape != got.shape:
        raise Off(f"{name} as in the whole batch, {list(want.shape)}", f"{list(got.shape)} {how}")
    if want.dtype == torch.bool:
        same = want == got
    else:
        want, got = want.detach().double(), got.detach().double()
        same = torch.isclose(want, got, rtol=1e-9, atol=1e-11, equal_nan=True)
    if not same.all():
        at = int((~same).flatten().nonzero()[0])
        raise Off(f"{name}[{at}] as in the whole batch, {want.flatten()[at].item():.6g}", f"{got.flatten()[at].item():.6g} {how}")


RULES = (
    Rule(
        "order",
        "The order of the sequences means nothing.",
        "an index into the batch, or tokens compared with those of the next sequence: sequences.next and reverse_scan stop at its end",
        _ordered,
        _permutation,
        per_choice=True,
        cases=3,
        long=True,
    ),
    Rule(
        "scope",
        "A result depends on no more than its scope says, so every cut that the scope allows gives the same.",
        "a mean, a std or a rank over the whole micro-batch; use group_mean and moments, and declare scope='group' or 'step'",
        _cut,
        _scope,
        per_choice=True,
        cases=4,
        long=True,
    ),
    Rule(
        "exact-over-ranks",
        "A step on several ranks, with groups that lie on more than one, gives what one rank gives.",
        "torch.mean or a count of this rank alone; sums through sequences.group_sum, moments and totals reach over ranks",
        _reaches,
        _ranks,
        per_choice=True,
        cases=1,
    ),
)
