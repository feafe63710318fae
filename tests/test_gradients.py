"""Every registered loss in float64: its gradient is the slope of its value, where whatever it detaches is held still."""

import pytest
import torch
from worlds import World, columns_of

import lossary

KINDS = ("policy_loss", "value_loss", "auxiliary_loss", "kl")
LOSSES = [c for c in lossary.catalog() if c.kind.name in KINDS and c.distribution == "lossary"]


class Held:
    """Replays in later runs what ``detach`` gave in the first one: a stop-gradient is a constant, also for a difference quotient."""

    def __init__(self, patch):
        self.values, self.at, real = [], None, torch.Tensor.detach

        def detach(x):
            if self.at is None:
                self.values.append(real(x).clone())
                return real(x)
            self.at += 1
            return self.values[self.at - 1]

        patch.setattr(torch.Tensor, "detach", detach)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("component", LOSSES, ids=lambda c: f"{c.kind.name}/{c.name}")
def test_the_gradient_is_the_slope(component, seed, monkeypatch):
    batch = World(seed, rows=6, width=4).batch(trained=True)
    columns, leaves = columns_of(component, batch, requires_grad=True)
    params = component.params().model_dump()
    direction = torch.Generator().manual_seed(seed)
    held = Held(monkeypatch)

    def value():
        out = component.function(*columns, **params)
        loss = out[0] if isinstance(out, tuple) else out
        return (loss * torch.rand(loss.shape, generator=direction.manual_seed(seed), dtype=loss.dtype)).sum()

    value().backward()
    assert leaves, "a loss reads something that learns"
    size = 1e-6
    for name, leaf in leaves.items():
        flat, slope = leaf.data.view(-1), torch.zeros(leaf.numel(), dtype=torch.float64)
        for i in range(leaf.numel()):
            middle, found = flat[i].item(), []
            for step in (size, -size):
                flat[i], held.at = middle + step, 0
                with torch.no_grad():
                    found.append(value().item())
            flat[i] = middle
            slope[i] = (found[0] - found[1]) / (2 * size)
        grad = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert torch.allclose(grad.view(-1), slope, rtol=1e-5, atol=1e-7), name
