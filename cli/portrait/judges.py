"""KL estimates, the critic's losses, and corrections against the mismatch between sampler and trainer."""

import torch
from torch import Tensor

from ...batch import Sequences
from ...registry import Component
from .examples import settings_of
from .picture import Line, Panel, Picture
from .tiny import REST, NoPicture, call

_REFERENCE = -3.2
"""A reference probability of 0.04, so that a policy 3 nats above it is still a policy."""


def _tokens(n: int, each: int = 1) -> Sequences:
    return Sequences.of(torch.full((n,), each), n * each, torch.arange(n), n)


def kl(component: Component) -> Picture:
    """Draw value and gradient against the log-ratio, with the exact k3 to compare with."""
    apart = torch.linspace(-3, 3, 301, dtype=torch.float64)
    sequences = _tokens(apart.shape[0])
    moved = apart.clone().requires_grad_()
    log_prob = _REFERENCE + moved
    ref = torch.full_like(apart, _REFERENCE)
    value = call(component, sequences, {"log_prob": log_prob, "ref_log_prob": ref, "old_log_prob": log_prob.detach()})
    if not value.requires_grad:
        raise NoPicture("it has no gradient")
    (slope,) = torch.autograd.grad(value.sum(), moved)
    against = r"log-ratio  $\log\,\pi/\pi_\mathrm{ref}$ [nats]"
    exact = Line(apart, torch.expm1(-apart) + apart, r"$k_3$, exact", "faint")
    pull = Line(apart, 1 - (-apart).exp(), r"$k_3$, exact", "faint")
    here = component.name
    low = min(-0.6, value.min().item() - 0.3)
    panels = (
        Panel("Value [nats]", against, (exact, Line(apart, value.detach(), here)), (0.0,), (low, max(4.5, value.max().item() * 0.35))),
        Panel(
            r"Gradient  $\partial/\partial\ell$", against, (pull, Line(apart, slope, here)), (0.0,), (-4.5, max(3.6, slope.max().item()))
        ),
    )
    return Picture(panels, "One token on policy. Left of 0 the policy has lost what the reference had, right of it the policy has gained.")


def value(component: Component) -> Picture:
    """Draw loss and gradient against the error, for a critic that was right before the update and for one that was not."""
    if "values" not in component.columns:
        return _bins(component)
    far = max(2.5, 1.3 * float(settings_of(component).get("delta") or 0))
    error = torch.linspace(-far, far, 301, dtype=torch.float64)
    sequences = _tokens(error.shape[0])
    losses, slopes = [], []
    for label, tone, before in (("old value right", "first", 0.0), ("old value 1.5 too low", "second", -1.5)):
        values = error.clone().requires_grad_()
        columns = {"values": values, "old_values": torch.full_like(error, before), "returns": torch.zeros_like(error)}
        loss = call(component, sequences, columns)
        (slope,) = torch.autograd.grad(loss.sum(), values)
        losses.append(Line(error, loss.detach(), label, tone))
        slopes.append(Line(error, slope, label, tone))
    against = r"error  $v - R$"
    panels = (Panel("Loss", against, tuple(losses), (0.0,)), Panel(r"Gradient  $\partial L/\partial v$", against, tuple(slopes), (0.0,)))
    return Picture(panels, "One token. Where the gradient is 0 the critic has moved as far as the clip lets it.")


def _bins(component: Component) -> Picture:
    raise NoPicture("a critic of bins has no tiny batch")


def correction(component: Component) -> Picture:
    """Draw the weight of a token against the log-ratio of the old policy to the sampler; 0 where it is dropped."""
    apart = torch.linspace(-3, 3, 241, dtype=torch.float64)
    if not {"rollout_log_prob", "old_log_prob", "log_prob"} & set(component.columns):
        raise NoPicture("it does not look at the mismatch")
    together = component.scope != "token"
    n, each = apart.shape[0], 4 if together else 1
    sequences = _tokens(n, each)
    lines = []
    for sign, label, tone in ((1.0, "$A=+1$", "first"), (-1.0, "$A=-1$", "second")):
        moved = sequences.spread(apart)
        old = torch.full_like(moved, REST)
        columns = {
            "old_log_prob": old, "log_prob": old, "rollout_log_prob": old - moved,
            "advantages": torch.full_like(moved, sign), "rewards": torch.full_like(apart, max(sign, 0.0)),
        }  # fmt: skip
        if component.scope == "step":
            weight = torch.stack([_one(component, i, apart) for i in range(n)])
        else:
            weight = _applied(component, sequences, columns)
            weight = sequences.mean(weight)
        lines.append(Line(apart, weight, label, tone))
    alike = torch.equal(lines[0].y, lines[1].y)
    shown = (Line(apart, lines[0].y),) if alike else tuple(lines)
    if not any((line.y != 1).any() for line in shown):
        raise NoPicture("it leaves these tokens as they are")
    who = "One sequence of 4 tokens that all differ by the same log-ratio." if together else "One token."
    panel = Panel(
        "Weight of the token; 0 where it is dropped", r"log-ratio  $\log\,\pi_\mathrm{old}/\pi_\mathrm{sampler}$ [nats]", shown, (0.0,)
    )
    return Picture((panel,), who)


def _applied(component: Component, sequences: Sequences, columns: dict[str, Tensor]) -> Tensor:
    weight, keep = call(component, sequences, columns)
    size = sequences.index.shape[0]
    weight = torch.ones(size, dtype=torch.float64) if weight is None else weight.detach().to(torch.float64)
    return weight if keep is None else torch.where(keep, weight, 0.0)


def _one(component: Component, i: int, apart: Tensor) -> Tensor:
    """Return the weight of a token that alone in a step of 32 has drifted."""
    sequences = _tokens(32)
    moved = torch.linspace(-0.3, 0.3, 32, dtype=torch.float64)
    moved[0] = apart[i]
    old = torch.full_like(moved, REST)
    columns = {"old_log_prob": old, "log_prob": old, "rollout_log_prob": old - moved, "advantages": torch.ones_like(moved)}
    return _applied(component, sequences, columns)[0]
