"""What the checks of claims share: a rule by the name of its claim, tensors compared, policies that agree."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Component
from ..registry.claims import CLAIMS
from .case import Case
from .check import Rule, Test
from .numbers import POLICIES
from .subject import Off, Result


def claimed(name: str) -> Callable[[Component], bool]:
    """Return whether a component claims something."""
    return lambda component: name in component.claims


def only(result: Result) -> Tensor:
    """Return the single tensor of a result."""
    (part,) = result.parts.values()
    return part.x.detach()


def close(name: str, want: Tensor, got: Tensor, how: str = "", *, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Raise ``Off`` where two tensors differ."""
    right = torch.isclose(want, got, rtol=rtol, atol=atol)
    if not right.all():
        at = int((~right).flatten().nonzero()[0])
        raise Off(f"{name}[{at}] = {want.flatten()[at].item():.6g}{how}", f"{got.flatten()[at].item():.6g}")


def agreeing(case: Case) -> Case:
    """Return the case in which all policies are one, and the critic was right."""
    columns: dict[str, Tensor] = {}
    for name, x in case.columns.items():
        if name in POLICIES:
            columns[name] = case.columns.get("log_prob", case.columns[next(n for n in POLICIES if n in case.columns)])
        if name in ("ref_logits", "teacher_logits") and "logits" in case.columns:
            columns[name] = case.columns["logits"]
        if name in ("old_values", "values"):
            columns[name] = case.columns.get("returns", x)
    return case.having(**columns)


def claim_rule(name: str, cause: str, test: Test, *, cases: int = 3, long: bool = False) -> Rule:
    """Return the rule that looks at a claim."""
    return Rule(name, CLAIMS[name][1], cause, claimed(name), test, per_number=True, long=long, cases=cases)
