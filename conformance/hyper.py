"""Hyperparameters: each does something, none breaks at its own bounds, and a clip acts on its own side."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from ..registry import Component, bounds_of
from ..registry.params import inclusive
from .case import Case, Seeded
from .check import Rule
from .numbers import POLICIES, far, finite
from .settings import choices_of, others_of
from .subject import LOSSES, Off, Subject, on

SIDES = {"low": 1.0, "high": -1.0}
"""Where the hyperparameter of that name must not count: ratios above 1, ratios below."""


def tuned(component: Component) -> bool:
    """Whether it has hyperparameters."""
    return component.kind.columns and bool(component.params.model_fields)


def _used(subject: Subject, case: Case) -> None:
    told = _Told(subject)
    for name in subject.settings:
        if not any(_differs(told, base, name, few=few) for base, few in _bases(subject, name)):
            raise Off(f"another result or report for another {name} on some input", "the same for all values and inputs tried")


class _Told:
    """What a component tells at some settings on each of a few inputs, found out once: a pair of settings is met from both sides."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self.cases = list(_inputs(subject))
        self.known: dict[tuple[str, int], list[Any] | None] = {}

    def at(self, settings: Mapping[str, Any], number: int) -> list[Any] | None:
        """Return all that it tells on an input; None: an error."""
        key = (repr(sorted(settings.items())), number)
        if key not in self.known:
            self.known[key] = _told(self.subject.set(settings), self.cases[number])
        return self.known[key]


def _bases(subject: Subject, name: str) -> Iterator[tuple[Mapping[str, Any], bool]]:
    """Yield settings in which a hyperparameter may count: those of the component, its choices, and any second one changed, on few inputs."""
    for base in choices_of(subject.component, subject.settings):
        yield base, False
    for second in subject.settings:
        if second != name:
            for base in others_of(subject.component, subject.settings, second):
                yield base, True


def _differs(told: _Told, base: Mapping[str, Any], name: str, *, few: bool) -> bool:
    others = list(others_of(told.subject.component, base, name))
    for number in range(4 if few else len(told.cases)):
        want = told.at(base, number)
        if want is not None and any((got := told.at(other, number)) is not None and not _same(want, got) for other in others):
            return True
    return False


class _Uneven(Seeded):
    """A group of five and one of one."""

    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return 70 tokens, enough for something to be said twice."""
        return (12, 30, 1, 9, 0, 18), (0, 0, 0, 0, 0, 1)


def _inputs(subject: Subject) -> Iterator[Case]:
    case = subject.case(_Uneven(1), 1)
    yield case
    policies = [n for n in ("log_prob", *POLICIES) if n in case.columns]
    for gap in (60.0, 0.0, 0.02, 8.0):
        apart = torch.linspace(-gap, gap, case.tokens, dtype=torch.float64)
        columns = {n: case.columns[policies[0]] + apart for n in policies[1:]}
        if "positions" in case.columns:  # a tool answers between any two tokens
            columns["positions"] = 2 * case.columns["positions"]
        yield case.having(**columns)
    for number in (1, 0):
        yield subject.case(Seeded(number), number)
    yield from (there for _, there in far(case))


def _told(subject: Subject, case: Case) -> list[Any] | None:
    """Return all numbers in what it gives, its report, its gradient and, where it has a state, what a second step gives; None: an error."""
    learn = subject.component.kind.name in LOSSES
    try:
        inputs = subject.inputs(case, learn=learn)
        out = subject.bound.call(list(inputs.values))
        found = list(_leaves(out))
        if learn and (part := next(iter(subject.apart(out, inputs).parts.values()))).x.requires_grad:
            found += torch.autograd.grad(part.x.sum(), list(inputs.leaves.values()), allow_unused=True)
        if subject.component.stateful and (state := subject.apart(out, inputs).state) is not None:
            found += _leaves(subject.bound.call(list(subject.inputs(case, state=state).values)))
    except Exception:  # another check's
        return None
    return found


def _leaves(out: Any) -> Iterator[Any]:
    if isinstance(out, Mapping):
        for x in out.values():
            yield from _leaves(x)
    elif isinstance(out, tuple | list):
        for x in out:
            yield from _leaves(x)
    elif is_dataclass(out):
        for f in fields(out):
            yield from _leaves(getattr(out, f.name))
    else:
        yield out


def _same(a: list[Any], b: list[Any]) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, Tensor) and isinstance(y, Tensor):
            if x.shape != y.shape or not torch.equal(x.detach().double().nan_to_num(1e99), y.detach().double().nan_to_num(1e99)):
                return False
        elif type(x) is not type(y) or x != y:
            return False
    return True


def _at_bounds(subject: Subject, case: Case) -> None:
    for name, bound in inclusive(subject.component.params):
        for settings in others_of(subject.component, subject.settings, name):
            if settings[name] == bound:
                finite(subject.set(settings), case, f"{name}={bound:g}, a bound of its own")
                break


def _sides_of(component: Component) -> Mapping[str, str]:
    """Return the hyperparameters that are called low or high, where there are both."""
    numbers = {name for name, kind, _, _, _ in bounds_of(component.params) if "number" in kind}
    found = {n: side for n in component.params.model_fields if n in numbers for side in SIDES if side in n.split("_")}
    return found if set(found.values()) == set(SIDES) else {}


def _sided(component: Component) -> bool:
    return component.kind.name == "policy_loss" and {"log_prob", "old_log_prob"} <= set(component.columns) and bool(_sides_of(component))


def _own_side(subject: Subject, case: Case) -> None:
    step = torch.linspace(0.02, 0.65, max(case.tokens, 1), dtype=torch.float64)[: case.tokens]
    for name, side in _sides_of(subject.component).items():
        old = case.columns["log_prob"] - SIDES[side] * step
        with on(case.having(old_log_prob=old, rollout_log_prob=old)) as there:
            want = subject.gradients(there)[1]["log_prob"]
            for settings in others_of(subject.component, subject.settings, name):
                got = subject.set(settings).gradients(there)[1]["log_prob"]
                if not torch.allclose(want, got, rtol=1e-9, atol=1e-11):
                    at = int((want - got).abs().argmax())
                    above = "above" if side == "low" else "below"
                    raise Off(
                        f"that {name}={settings[name]!r} changes no gradient where all ratios are {above} 1, {want[at]:.6g} at {at}",
                        f"{got[at]:.6g}",
                    )


RULES = (
    Rule(
        "hyperparameters-used",
        "Each of its hyperparameters changes what it gives or reports, for some input.",
        "one that is left over, or a constant written where it belongs",
        tuned,
        _used,
        cases=0,
    ),
    Rule(
        "finite-at-bounds",
        "Value and gradient are finite where a hyperparameter is at a bound that its type allows.",
        "a division by 1 - x or by x: where the bound itself makes no sense, say lt and gt instead of le and ge",
        lambda c: tuned(c) and any(inclusive(c.params)),
        _at_bounds,
        cases=1,
    ),
    Rule(
        "own-side",
        "A hyperparameter called low counts where ratios are below 1 only, and one called high where they are above.",
        "the two bounds swapped, which nobody sees while their defaults are equal: ratio.clamp(1 - low, 1 + high)",
        _sided,
        _own_side,
        cases=2,
    ),
)
