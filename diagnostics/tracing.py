"""Every operation of a loss as it happens: what it gave, on which line, and of what. For one look after the fact, never for training."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

HERE = Path(__file__).parent
QUIET = {HERE / "running.py", HERE / "tracing.py"}
HOUSE = {HERE.parent / name for name in ("pipeline", "batch", "registry")}
"""Where an operation stands that no component wrote."""


@dataclass(frozen=True)
class Step:
    """One operation."""

    name: str
    place: str
    """``file:line``; empty in a backward pass, which stands on no line."""
    out: Tensor
    inputs: tuple[Any, ...]
    parents: tuple["Step", ...]
    broken: Tensor | None
    """Which of its values are broken, of those that are looked at; None: none."""

    def __str__(self) -> str:
        return f"{self.name} at {self.place}" if self.place else f"{self.name} in the backward pass"

    @property
    def value(self) -> float:
        """The first broken value."""
        assert self.broken is not None
        return float(self.out.detach()[self.broken][0])


class Trace(TorchDispatchMode):
    """Keep every operation with a real result; ``looks`` says which of a tensor's values are broken, and where to look at all."""

    def __init__(self, looks: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.looks, self.steps, self._made = looks, list[Step](), dict[int, Step]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Say that no compiler looks at this: else torch imports its own, which takes seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation and note it."""
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        # By memory, not by tensor: autograd hands views on under another identity.
        parents = tuple({id(s): s for x in given if (s := self._made.get(_memory(x))) is not None}.values())
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.is_floating_point():
                bad = None if self.looks is None else self.looks(x)
                some = bad is not None and bool(bad.any())
                name = str(func.overloadpacket).removeprefix("aten.").rstrip("_")
                where = _line() if self.looks is None or some else ""
                step = Step(name, where, x, tuple(args), parents, bad if some else None)
                self.steps.append(step)
                self._made[_memory(x)] = step
        return out

    def origin(self, x: Tensor) -> Step | None:
        """Return the first broken operation on the way to ``x``."""
        step = self._made.get(_memory(x))
        if step is None or step.broken is None:
            return None
        while (before := next((s for s in step.parents if s.broken is not None), None)) is not None:
            step = before
        return step


def _memory(x: Tensor) -> int:
    return int(x.untyped_storage()._cdata)


def _line() -> str:
    """Return the innermost line of a component, or else of the pipeline."""
    frame, ours = sys._getframe(2), ""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.name in {p.name for p in QUIET} and path.parent.name == HERE.name:
            if path.name == "running.py":
                return ours
        elif "torch" not in path.parts and path.suffix == ".py":
            said = f"{path.name}:{frame.f_lineno}"
            if path.parent.name not in {p.name for p in HOUSE}:
                return said
            ours = ours or said
        assert frame.f_back is not None
        frame = frame.f_back
    return ours
