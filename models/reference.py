"""The frozen policy that a KL term compares with: a copy that stays at hand, a copy kept on the CPU, or the policy without its adapters."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..registry import Strict
from .lora import without_adapters


class ReferenceSettings(Strict):
    """Where the reference's weights are; by default a copy of the policy lies beside it."""

    adapters_off: bool = False
    """The policy itself with its adapters switched off: no second copy of the weights."""
    param_offload: bool = False
    """Keep the copy on the CPU and bring it to the policy's device for each pass."""


def misplaced(reference: ReferenceSettings, *, adapters: bool, warmed: bool) -> Iterator[tuple[str, str]]:
    """Yield each key that means nothing for this policy, or not what it says, and why."""
    if reference.adapters_off and not adapters:
        yield "adapters_off", "the policy has no adapters to switch off: say model.lora_rank"
    elif reference.adapters_off and warmed:
        yield "adapters_off", "the warm-up teaches the adapters, so that without them it is the policy before it: say warm_up.steps: 0"
    if reference.adapters_off and reference.param_offload:
        yield "param_offload", "with adapters_off the reference is the policy itself, which stays where it is"


class Reference(Protocol):
    """What a trainer asks of a reference."""

    def at_hand(self) -> Any:
        """Return a context in which the ``Decoder`` that it gives can be called."""
        ...

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return the weights that a checkpoint must hold for it."""
        ...


class Resident:
    """A frozen copy where the policy is."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @contextmanager
    def at_hand(self) -> Iterator[Any]:
        """Give the copy."""
        yield self.model

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return its weights."""
        return self.model.state_dict()


class Offloaded(Resident):
    """A frozen copy on the CPU, which is on ``device`` only while it is at hand; nothing is copied back, for nothing has changed."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        super().__init__(model.cpu())
        self.device = device

    @contextmanager
    def at_hand(self) -> Iterator[Any]:
        """Give the copy, on the device."""
        held: list[dict[str, Any]] = [d for m in self.model.modules() for d in (m._parameters, m._buffers)]
        home = [(d, name, x) for d in held for name, x in d.items() if x is not None]
        there = {id(x): self._moved(x) for _, _, x in home}  # one for weights that are tied
        try:
            for d, name, x in home:
                d[name] = there[id(x)]
            yield self.model
        finally:
            for d, name, x in home:
                d[name] = x

    def _moved(self, x: Tensor) -> Tensor:
        there = x.detach().to(self.device)
        return nn.Parameter(there, requires_grad=False) if isinstance(x, nn.Parameter) else there


class WithoutAdapters:
    """The policy as it was before it learned, at no cost in memory: adapters are off in each of its forward passes, and only there."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    @contextmanager
    def at_hand(self) -> Iterator["WithoutAdapters"]:
        """Give itself."""
        yield self

    def __call__(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return the hidden states of the policy without its adapters."""
        with without_adapters(self.policy):
            out: Tensor = self.policy(ids, attention_mask)
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)  # its head, which has no adapter, and what scales the logits

    def state_dict(self) -> Mapping[str, Tensor]:
        """Return nothing: the weights are the policy's."""
        return {}


def reference_of(how: ReferenceSettings, policy: Any, copy: Callable[[], nn.Module]) -> Reference:
    """Return the policy as it is now, frozen; ``copy`` makes a second one where that is wanted."""
    if how.adapters_off:
        return WithoutAdapters(policy)
    return Offloaded(copy(), next(policy.parameters()).device) if how.param_offload else Resident(copy())
