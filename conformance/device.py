"""The device: nothing waits for it, nothing lies on another one, and one graph holds it all."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from ..registry import Component, Measured, Totals, text_of
from .case import Case
from .check import Rule
from .structural import runs
from .subject import LOSSES, Inputs, Off, Subject, uneven

_ELSEWHERE = re.compile(r"same device|expected device|on device cpu")


def _tried(subject: Subject, case: Case) -> BaseException | None:
    """Return what it raises on tensors that have shapes but no values; two checks ask for that, and it is tried once."""
    key = ("meta", id(case))
    if key not in subject.seen:
        subject.seen[key] = case, _raised(subject, case)  # with the case, whose id no other one can then have
    found: BaseException | None = subject.seen[key][1]
    return found


def _raised(subject: Subject, case: Case) -> BaseException | None:
    """Run it on tensors that lie on no device that anything else lies on."""
    real = subject.inputs(case, learn=subject.component.kind.name in LOSSES)
    inputs = Inputs(tuple(map(_emptied, real.values)), {}, _emptied(real.sequences))
    try:
        for part in subject.run(inputs).parts.values():
            if part.x.requires_grad:
                part.x.sum().backward()  # type: ignore[no-untyped-call]
    except Off as off:
        if off.__cause__ is None:  # its form is another check's
            raise
        return off.__cause__
    except Exception as error:
        return error
    return None


def _emptied(x: Any) -> Any:
    if isinstance(x, (Totals, Measured)):
        return type(x)(*map(_emptied, vars(x).values()))
    return tree_map_only(Tensor, lambda t: t.detach().to("meta").requires_grad_(t.requires_grad), dict(x) if isinstance(x, Mapping) else x)


def _never_waits(subject: Subject, case: Case) -> None:
    error = _tried(subject, case)
    if error is not None and not _ELSEWHERE.search(text_of(error)):
        raise Off("operations whose shapes and branches follow from shapes alone", f"one that reads values: {_first(error)}") from error


def _any_device(subject: Subject, case: Case) -> None:
    error = _tried(subject, case)
    if error is not None and _ELSEWHERE.search(text_of(error)):
        raise Off("new tensors on the device of the columns", f"one on another: {_first(error)}") from error


def _first(error: BaseException) -> str:
    return (text_of(error).strip().splitlines() or [type(error).__name__])[0]


def _compiles(subject: Subject, case: Case) -> None:
    def eager(gm: Any, example: Any) -> Any:
        return gm.forward

    torch._dynamo.reset()
    learn = subject.component.kind.name in LOSSES
    plain, traced = (subject.inputs(case, learn=learn) for _ in range(2))
    function = subject.component.function
    try:
        out = torch.compile(lambda *values: function(*values, **subject.settings), fullgraph=True, backend=eager)(*traced.values)
    except Exception as error:
        said = text_of(error).strip().splitlines()
        raise Off("one graph without a break", said[0] if said else type(error).__name__) from error
    finally:
        torch._dynamo.reset()
    want, got = subject.run(plain), subject.apart(out, traced)
    for name, part in want.parts.items():
        if not torch.allclose(part.x.double(), got.parts[name].x.double(), rtol=1e-9, atol=1e-11, equal_nan=True):
            raise Off(f"{name} as without the compiler", "another one")
        if part.x.requires_grad:
            slopes = [torch.autograd.grad((x * uneven(x)).sum(), list(i.leaves.values()), allow_unused=True)
                      for x, i in ((part.x, plain), (got.parts[name].x, traced))]  # fmt: skip
            for a, b in zip(*slopes, strict=True):
                if (a is None) is not (b is None) or (a is not None and not torch.allclose(a, b, rtol=1e-9, atol=1e-11)):
                    raise Off("the gradient as without the compiler", "another one")


def _compiled(component: Component) -> bool:
    return component.kind.name in LOSSES


RULES = (
    Rule(
        "never-waits",
        "It never waits for the device: no value is read, and no shape or branch depends on one.",
        ".item(), float(x), `if x.any()`, x[mask], nonzero or unique; torch.where keeps every shape",
        runs,
        _never_waits,
        per_choice=True,
        cases=1,
    ),
    Rule(
        "any-device",
        "It makes new tensors where its columns lie.",
        "torch.zeros(n) or torch.arange(n) without device=: x.new_zeros, zeros_like, or device=x.device",
        runs,
        _any_device,
        per_choice=True,
        cases=1,
    ),
    Rule(
        "compiles",
        "torch.compile makes one graph of it, which gives the same numbers.",
        "Python that looks at values, or an operation that the compiler does not know",
        _compiled,
        _compiles,
        cases=1,
    ),
)
