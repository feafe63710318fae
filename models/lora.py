"""Low-rank adapters: the weights that were read stay as they are, and every linear layer but the heads learns a product of two thin ones.

``y = W x + (alpha / rank) B A x`` (Hu et al. 2021, arXiv:2106.09685). ``B`` begins at zero, so that a model with new adapters is the model without, bit for bit.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .family import ModelError


class Adapted(nn.Module):
    """A linear layer with an adapter, which ``on`` switches; its own weight keeps its name and gets no gradient."""

    def __init__(self, layer: nn.Linear, rank: int, alpha: float, generator: torch.Generator) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        outward, inward = layer.weight.shape
        bound = inward**-0.5  # as torch begins a linear layer
        self.lora_a = nn.Parameter((torch.rand(rank, inward, generator=generator) * 2 - 1).mul(bound).to(layer.weight))
        self.lora_b = nn.Parameter(layer.weight.new_zeros(outward, rank))
        self.scale, self.on = alpha / rank, True

    def forward(self, x: Tensor) -> Tensor:
        """Return ``W x`` and, if it is on, what the adapter adds."""
        out = F.linear(x, self.weight, self.bias)
        return out + self.scale * F.linear(F.linear(x, self.lora_a), self.lora_b) if self.on else out


@dataclass(frozen=True)
class Adapters:
    """The size of a model's adapters; ``alpha / rank`` scales what they add."""

    rank: int
    alpha: float

    def into(self, model: Any, seed: int) -> None:
        """Give them to every linear layer of a ``Decoder`` but its heads; they alone, and a value head, get gradients from then on."""
        heads, generator = (model.lm_head, model.value_head), torch.Generator().manual_seed(seed)
        model.requires_grad_(False)
        if model.value_head is not None:
            model.value_head.requires_grad_(True)
        places = [(m, name, x) for m in model.modules() for name, x in m.named_children() if isinstance(x, nn.Linear)]
        places = [(m, name, x) for m, name, x in places if all(x is not head for head in heads)]
        if not places:
            raise ModelError("model.lora_rank: the model has no linear layer (torch.nn.Linear) beside its heads to adapt.")
        for parent, name, layer in places:
            setattr(parent, name, Adapted(layer, self.rank, self.alpha, generator))


def adapted(model: nn.Module) -> dict[str, Adapted]:
    """Return the layers of a model that have an adapter, by their names."""
    return {name: m for name, m in model.named_modules() if isinstance(m, Adapted)}


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Switch a model's adapters off for a while: what is left is the model as it was read."""
    layers = [m for m in adapted(model).values() if m.on]
    for m in layers:
        m.on = False
    try:
        yield
    finally:
        for m in layers:
            m.on = True


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's weights as one that has no adapters would hold them: ``W + (alpha / rank) B A``."""
    found = dict(model.state_dict())
    for name, layer in adapted(model).items():
        down, up = found.pop(f"{name}.lora_a"), found.pop(f"{name}.lora_b")
        found[f"{name}.weight"] = found[f"{name}.weight"] + layer.scale * up @ down
    return found
