"""Numbers: finite wherever they may be asked for, right in single precision, with a gradient that is the slope of the value."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ..registry import Component, Level
from .case import Case
from .check import Rule
from .held import Held
from .structural import runs
from .subject import LOSSES, Off, Subject, on, uneven

POLICIES = ("old_log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob", "prm_log_prob")
FAR = 700.0


def learns(component: Component) -> bool:
    """Kinds of which the gradient counts."""
    return component.kind.name in LOSSES


def _extremes(subject: Subject, case: Case) -> None:
    for said, there in far(case):
        with on(there):
            finite(subject, there, said)


def far(case: Case) -> Iterator[tuple[str, Case]]:
    """Yield policies 700 nats apart in both directions on half of the tokens, no advantage at all, equal and huge rewards."""
    half = torch.arange(case.tokens) % 2 == 0
    sign = (torch.arange(case.tokens) % 3 - 1).to(torch.float64)
    for drift in (FAR, -FAR):
        base = torch.full((case.tokens,), min(drift, 0.0) - 1, dtype=torch.float64)
        other = torch.where(half, base - drift, base - 0.1)
        columns: dict[str, Tensor] = {"log_prob": base, "advantages": sign, **dict.fromkeys(POLICIES, other)}
        for name, x in case.columns.items():
            if case.levels[name] is Level.VOCAB:
                columns[name] = torch.where((torch.arange(x.numel()) % 2 == 0).view_as(x), drift, 0.1).to(torch.float64)
        yield f"policies {FAR:g} nats apart", case.having(**columns)
    yield "no advantage", case.having(advantages=torch.zeros(case.tokens, dtype=torch.float64))
    rewarded = [n for n in case.columns if n.endswith("rewards")]
    if rewarded:
        yield "equal rewards", case.having(**{n: torch.full_like(case.columns[n], 0.1) for n in rewarded})
        yield "rewards of 1e4", case.having(**{n: 1e4 * case.columns[n] for n in rewarded})
    if "rollout_log_prob" in case.columns:
        unscored = torch.where(half, case.columns["rollout_log_prob"], math.nan)
        yield "tokens that the sampler did not score", case.having(rollout_log_prob=unscored)


def _small(subject: Subject, case: Case) -> None:
    alone = [i for i, n in enumerate(case.lengths) if n == 1] or [0][: len(case.lengths)]
    empty = [i for i, n in enumerate(case.lengths) if n == 0]
    for said, there in (
        ("sequences of one token and none", case.take([*alone, *empty])),
        ("one sequence", case.take(alone[:1])),
        ("no token at all", case.take(empty)),
        ("a batch with an empty sequence", case),
    ):
        if there.lengths:
            with on(there):
                finite(subject, there, said)


def finite(subject: Subject, case: Case, said: str) -> None:
    """Raise ``Off`` where value or gradient are not finite in float32."""
    if subject.component.kind.name in LOSSES:
        result, gradients = subject.gradients(case, dtype=torch.float32)
        for name, g in gradients.items():
            if not g.isfinite().all():
                raise Off(f"a finite gradient ({said})", f"{_first(g)} by {name}")
    else:
        result = subject.run(subject.inputs(case, dtype=torch.float32))
    for name, part in result.parts.items():
        if not part.x.isfinite().all():
            raise Off(f"finite numbers ({said})", f"{name} is {_first(part.x)}")


def _first(x: Tensor) -> str:
    where = int((~x.isfinite()).flatten().nonzero()[0])
    return f"{x.flatten()[where].item()} at {where}"


class _Halves(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that gives half precision."""

    seen = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at what an operation gives."""
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.dtype in (torch.float16, torch.bfloat16):
            self.seen = self.seen or f"{str(out.dtype).removeprefix('torch.')} from {func.overloadpacket.__name__}"
        return out


def _precision(subject: Subject, case: Case) -> None:
    inputs = subject.inputs(case, dtype=torch.float32)
    with _Halves() as halves:  # type: ignore[no-untyped-call]
        subject.run(inputs)
    if halves.seen:
        raise Off("no number in half precision on the way", halves.seen)
    rounded = case.mapped(lambda name, x: x.to(torch.bfloat16).to(torch.float64))
    if subject.component.kind.name in LOSSES:
        wide, exact = subject.gradients(rounded)
        narrow, found = subject.gradients(rounded, dtype=torch.float32)
    else:
        wide, exact, found = subject.run(subject.inputs(rounded)), {}, {}
        narrow = subject.run(subject.inputs(rounded, dtype=torch.float32))
    pairs = [(name, p.x, narrow.parts[name].x) for name, p in wide.parts.items() if p.x.is_floating_point()]
    for name, a, b in (*pairs, *((f"the gradient by {n}", g, found[n]) for n, g in exact.items())):
        if not torch.allclose(a.double(), b.double(), rtol=1e-3, atol=1e-4):
            raise Off(f"{name} in float32 as in float64, {_shown(a, b)}", _shown(b, a))


def _keeps_dtype(subject: Subject, case: Case) -> None:
    if not any(x.is_floating_point() for x in case.columns.values()):
        return
    for name, part in subject.run(subject.inputs(case)).parts.items():
        if part.x.is_floating_point() and part.x.dtype != torch.float64:
            raise Off(f"{name} in float64 for columns in float64", str(part.x.dtype).removeprefix("torch."))


def _shown(x: Tensor, other: Tensor) -> str:
    """Return the element that is most unlike that of another tensor."""
    where = int((x.detach().double() - other.detach().double()).abs().nan_to_num(math.inf).argmax())
    return f"{x.detach().flatten()[where].item():.6g}"


def _learns(subject: Subject, case: Case) -> None:
    quiet = subject.run(subject.inputs(case))
    for name, part in quiet.parts.items():
        if part.x.requires_grad:
            raise Off(
                "no gradient where no column has one", f"{name} has one", "a parameter of its own, or a column that is kept between calls"
            )
    if not learns(subject.component) or not case.tokens:
        return
    if not subject.learns_from:
        raise Off("a column that learns, such as log_prob", "none")
    (part,) = subject.run(subject.inputs(case, learn=True)).parts.values()
    if not part.x.requires_grad:
        raise Off(f"a gradient by {' or '.join(subject.learns_from)}", "a loss without one", "a detach too many, or a no_grad")


def _gradient(subject: Subject, case: Case) -> None:
    def aside(x: Tensor) -> Tensor:  # a value on a kink has no slope
        return x + 1e-3 * torch.sin(torch.arange(x.numel(), dtype=torch.float64) + 1).view_as(x)

    case = case.having(**{n: aside(case.columns[n]) for n in subject.learns_from if n in case.columns})
    try:
        _slope(subject, case, Held(quiet=False))
    except Off:
        _slope(subject, case, Held(quiet=True))


def _slope(subject: Subject, case: Case, held: Held) -> None:
    inputs = subject.inputs(case, learn=True)
    with held:
        result = subject.run(inputs)
    (part,) = result.parts.values()
    if not part.x.requires_grad or not part.x.numel():
        return
    weights = uneven(part.x)
    found = torch.autograd.grad((part.x * weights).sum(), list(inputs.leaves.values()), allow_unused=True)
    for (name, leaf), grad in zip(inputs.leaves.items(), found, strict=True):
        for k in range(2):
            along = torch.cos(torch.arange(leaf.numel(), dtype=torch.float64) * (2.3 + k) + k).view_as(leaf)
            size, ends = 1e-6, []
            for step in (size, -size):
                moved = subject.inputs(case.having(**{name: case.columns[name] + step * along}), learn=True)
                with held.again():
                    (end,) = subject.run(moved).parts.values()
                ends.append(float((end.x.detach() * weights).sum()))
            slope = (ends[0] - ends[1]) / (2 * size)
            mine = 0.0 if grad is None else float((grad * along).sum())
            if not math.isclose(mine, slope, rel_tol=1e-4, abs_tol=1e-6 + 1e-9 * max(map(abs, ends))):
                raise Off(f"the slope of the value by {name}, {slope:.6g}", f"a gradient of {mine:.6g} along the same direction")


RULES = (
    Rule(
        "finite-at-extremes",
        "Value and gradient are finite in float32 at log-ratios of 700 nats, without advantage, at equal and at huge rewards.",
        "an exp that overflows, then 0 * inf: bound the log-ratio first (numerics.bounded_log_ratio), select with torch.where on the input",
        runs,
        _extremes,
        per_choice=True,
        cases=1,
    ),
    Rule(
        "empty-and-single",
        "Value and gradient are finite for sequences of one token, of none, and where nothing was sampled at all.",
        "a division by a length or a count of 0, or a std of one value: sequences.mean and group_std know what to do",
        runs,
        _small,
        per_choice=True,
        cases=1,
    ),
    Rule(
        "precision",
        "In float32, from numbers that bf16 can hold, it gives what float64 gives; half precision occurs nowhere on the way.",
        "a difference of large numbers, or a sum over tokens in half precision: sequences.sum adds in float64",
        runs,
        _precision,
        cases=2,
    ),
    Rule(
        "keeps-dtype",
        "From columns in float64 it makes float64.",
        "a .float() or a torch.float32 inside, which rounds what was exact: x.to(log_prob.dtype), new_zeros and zeros_like keep it",
        runs,
        _keeps_dtype,
        per_choice=True,
        cases=2,
    ),
    Rule(
        "detached-columns",
        "Its gradient reaches the columns that learn, and nothing else.",
        "a detach too many, or a parameter of its own",
        runs,
        _learns,
        per_choice=True,
        cases=2,
    ),
    Rule(
        "gradient",
        "Its gradient is the slope of its value, what it detaches held still (float64).",
        "a branch chosen by a value that also learns, an autograd function with a wrong backward, an operation in place",
        learns,
        _gradient,
        per_choice=True,
        cases=2,
    ),
)
