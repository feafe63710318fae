"""What can be seen of a component without numbers, or in the form of what it returns: signature, documentation, purity."""

import random
import re
import sys
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..registry import Component, Level, bounds_of
from ..registry.component import check_columns
from ..registry.errors import SignatureError
from ..registry.params import boundless
from .case import Case, Seeded
from .check import Rule
from .subject import Off, Result, Subject


def anything(component: Component) -> bool:
    """Every kind."""
    return True


def runs(component: Component) -> bool:
    """Kinds that are called on columns."""
    return component.kind.columns


def _signature(subject: Subject, case: Case) -> None:
    try:
        check_columns(subject.component, subject.fields)
    except SignatureError as error:
        raise Off("columns that somebody declared", str(error)) from error


def _documented(subject: Subject, case: Case) -> None:
    c = subject.component
    if len(c.summary.split()) < 3:
        raise Off("a docstring whose first line says what it does", repr(c.summary) if c.summary else "no docstring")
    if c.kind.columns and not re.search(r"\.\. math::\s*\S|:math:`|``[^`]*[=+*/(<>^|-][^`]*``|\$[^$]+\$", c.doc):
        raise Off("the formula: `.. math::`, or an expression in double backticks", "a docstring without one")


def _referenced(subject: Subject, case: Case) -> None:
    c = subject.component
    module = sys.modules.get(getattr(c.function, "__module__", ""))
    text = f"{c.doc} {getattr(module, '__doc__', '') or ''}"
    if not (c.paper or c.compat or re.search(r"arXiv:|doi:|https?://|\bpaper\b", text)):
        raise Off("paper=..., compat={framework: ...} or a link in the docstring", "none of them")


def _hyperparameters(subject: Subject, case: Case) -> None:
    model = subject.component.params
    for name, _, _, _, said in bounds_of(model):
        if not said:
            raise Off(f"what {name} means: Annotated[..., Field(description=...)] or Annotated[..., 'its meaning']", "no word about it")
    for name in boundless(model):
        raise Off(f"bounds of {name}: Field(ge=..., le=...); or Field(allow_inf_nan=False), where any number makes sense", "none")


def _returns(subject: Subject, case: Case) -> None:
    result = subject.run(subject.inputs(case))
    if subject.component.stateful and result.state is not None:
        before = subject.component.init(**subject.settings) if subject.component.init else {}
        if set(result.state) != set(before):
            raise Off(f"a state with {sorted(before)}", f"{sorted(result.state)}", "init= and the new state must have the same keys")


def _inputs_untouched(subject: Subject, case: Case) -> None:
    inputs = subject.inputs(case)
    tensors = list(_tensors(inputs.values))
    copies = [(x, x.clone(), x._version) for x in tensors]
    subject.run(inputs)
    for i, (x, before, version) in enumerate(copies):
        if x._version != version or not _same(x, before):
            raise Off("all columns as they were", f"{_named(subject, inputs.values, i)} was written over")


def _deterministic(subject: Subject, case: Case) -> None:
    state = torch.get_rng_state(), random.getstate()
    try:
        first, again = (subject.run(subject.inputs(case)) for _ in range(2))
        subject.run(subject.inputs(subject.case(Seeded(977))))  # something else in between
        torch.manual_seed(1)
        random.seed(1)
        third = subject.run(subject.inputs(case))
    finally:
        torch.set_rng_state(state[0])
        random.setstate(state[1])
    for other, when in ((again, "the second time"), (third, "after another batch")):
        if told := _difference(first, other):
            raise Off("the same result for the same input", f"{told} {when}")


def _no_global_rng(subject: Subject, case: Case) -> None:
    inputs = subject.inputs(case)
    before = _generators()
    subject.run(inputs)
    moved = [whose for whose, state in _generators().items() if state != before[whose]]
    if moved:
        raise Off("no random number drawn", f"{moved[0]} global generator has moved")


def _generators() -> dict[str, object]:
    theirs = np.random.get_state(legacy=False)["state"]
    return {
        "torch's": bytes(torch.get_rng_state().tolist()),
        "Python's": random.getstate(),
        "numpy's": (theirs["key"].tobytes(), theirs["pos"]),
    }


def _tensors(values: Any) -> Any:
    for x in values:
        if isinstance(x, Tensor):
            yield x
        elif hasattr(x, "lengths"):
            yield from (t for t in (x.lengths, x.offsets, x.index, x.groups, x.slots) if t is not None)
        elif isinstance(x, dict):
            yield from _tensors(x.values())


def _named(subject: Subject, values: Any, at: int) -> str:
    names = [i.name for i, x in zip(subject.component.inputs, values, strict=True) for _ in _tensors([x])]
    return repr(names[at])


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(1e9), b.nan_to_num(1e9)) if a.is_floating_point() else torch.equal(a, b)


def _difference(a: Result, b: Result) -> str:
    for name, part in a.parts.items():
        other = b.parts.get(name)
        if other is None or not _same(part.x, other.x):
            return f"{name} was another one"
    return ""


def level_of(result: Result) -> Level:
    """Return where a result lives."""
    return next(iter(result.parts.values())).level


RULES = (
    Rule(
        "signature",
        "It asks only for columns that exist, and its hyperparameters have types and defaults within their bounds.",
        "a column of your own that was not passed: checks_for(f, columns=[...])",
        anything,
        _signature,
        cases=0,
    ),
    Rule(
        "documented",
        "Its docstring says what it does and gives the formula.",
        "a docstring that was left for later",
        anything,
        _documented,
        cases=0,
    ),
    Rule(
        "referenced",
        "It says where it comes from: a paper, a framework or a link.",
        "paper= is missing in the decorator; what is nobody's declares deviates={'referenced': '...'}",
        runs,
        _referenced,
        cases=0,
    ),
    Rule(
        "hyperparameters",
        "Every hyperparameter says what it means, and every number between which bounds it lies.",
        "a plain float; Annotated[float, Field(gt=0, description='...')] keeps nonsense out and is its documentation",
        runs,
        _hyperparameters,
        cases=0,
    ),
    Rule(
        "returns",
        "It returns what its kind promises, one value per token, sequence or group.",
        "a mean or a sum inside: lossary sums, return one value per token",
        runs,
        _returns,
        per_choice=True,
    ),
    Rule(
        "inputs-untouched",
        "It changes nothing that it is given.",
        "an operation in place (mul_, clamp_, x[mask] = ...); other terms read the same columns",
        runs,
        _inputs_untouched,
        per_choice=True,
        cases=2,
        long=True,
    ),
    Rule(
        "deterministic",
        "The same input gives the same result, whatever ran before.",
        "a random number, or something remembered between calls; state goes through `state`, chance through the column `noise`",
        runs,
        _deterministic,
        per_choice=True,
        cases=2,
    ),
    Rule(
        "no-global-rng",
        "It draws no number from a global generator.",
        "torch.rand and the like: draws then depend on split, order and rank; ask for the column `noise` instead",
        runs,
        _no_global_rng,
        per_choice=True,
        cases=2,
    ),
)
