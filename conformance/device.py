"""The device: nothing waits for it, nothing lies on another one, and one graph holds it all."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from ..registry import Component, Measured, Totals
from .case import Case
from .check import Rule
from .structural import runs
from .subject import LOSSES, Inputs, Off, Subject, uneven

_WAITS = ("DataDependentOutputException", "DynamicOutputShapeException", "GuardOnDataDependentSymNode", "UnsupportedOperatorException")


def _never_waits(subject: Subject, case: Case) -> None:
    """Run it on tensors that have shapes but no values: whatever depends on a value raises there."""
    real = subject.inputs(case, learn=subject.component.kind.name in LOSSES)
    mode = FakeTensorMode()
    inputs = Inputs(tuple(_faked(x, mode) for x in real.values), {}, _faked(real.sequences, mode))
    with mode:
        try:
            result = subject.run(inputs)
            for part in result.parts.values():
                if part.x.requires_grad:
                    part.x.sum().backward()  # type: ignore[no-untyped-call]
        except Off as off:
            raise _told(off.__cause__, off) from off.__cause__
        except Exception as error:
            raise _told(error, None) from error


def _told(error: BaseException | None, off: Off | None) -> Off:
    seen = error
    while seen is not None:
        if type(seen).__name__ in _WAITS or "fake" in str(seen).lower():
            said = str(seen).strip().splitlines()[0] if str(seen).strip() else type(seen).__name__
            return Off("operations whose shapes and branches follow from shapes alone", f"one that reads values: {said}")
        seen = seen.__cause__
    return off if off is not None else Off("a backward pass", f"{type(error).__name__}: {error}")


def _faked(x: Any, mode: FakeTensorMode) -> Any:
    if isinstance(x, (Totals, Measured)):
        return type(x)(*(mode.from_tensor(t) for t in vars(x).values()))
    return tree_map_only(Tensor, mode.from_tensor, dict(x) if isinstance(x, Mapping) else x)


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
        said = str(error).strip().splitlines()
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
        "compiles",
        "torch.compile makes one graph of it, which gives the same numbers.",
        "Python that looks at values, or an operation that the compiler does not know",
        _compiled,
        _compiles,
        cases=1,
    ),
)
