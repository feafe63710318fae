"""Stop-gradients held still: what a difference quotient must not move."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_STOPS = (torch.Tensor.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]


class Held(TorchFunctionMode):
    """Remembers in a first run what ``detach`` and ``data`` gave, and gives it again in later ones.

    A stop-gradient says that a number counts as a constant. The slope of the value is then that of a function in which it is one.
    ``quiet``: the same for what is computed under ``no_grad``, which may also be a value whose gradient is known otherwise.
    """

    def __init__(self, *, quiet: bool) -> None:
        super().__init__()
        self.quiet = quiet
        self.values: list[Any] = []
        self.at: int | None = None
        self._off = False

    def again(self) -> "Held":
        """Begin a run that hears what the first one saw."""
        self.at = 0
        return self

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Record or replay."""
        if func is torch._C._set_grad_enabled:  # said in Python: the forward pass of an autograd function does not come this way
            self._off = not args[0]
            return func(*args)
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, Tensor) or not ((self._off and self.quiet) or func in _STOPS):
            return made
        if self.at is None:
            self.values.append(made.clone())
            return made
        self.at += 1
        held = self.values[self.at - 1]
        return held.clone() if made.shape == held.shape else made
