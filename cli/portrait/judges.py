"""KL estimates, the critic's losses, and corrections against the mismatch between sampler and trainer."""

from typing import get_args

import torch
from torch import Tensor

from ...batch import Sequences
from ...registry import Component
from .examples import settings_of
from .picture import Line, Panel, Picture
from .tiny import REST, NoPicture, call

_REFERENCE = -3.2
"""A reference probability of 0.04, so that a policy 3 nats above it is still a policy."""

_EACH, _STEP = 4, 32
"""Tokens of a sequence that differ together, and of a step in which one has drifted."""


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
    exact_is_it = torch.allclose(value, exact.y) and torch.allclose(slope, pull.y)
    beside = [() if exact_is_it else (line,) for line in (exact, pull)]
    others = _other_gradients(component, slope, apart, log_prob, ref)
    here = f"{component.name}, own gradient" if others else component.name
    low = min(-0.6, value.min().item() - 0.3)
    panels = (
        Panel("Value [nats]", against, (*beside[0], Line(apart, value.detach(), here)), (0.0,), (low, max(4.5, value.max().item() * 0.35))),
        Panel(
            r"Gradient  $\partial/\partial\ell$",
            against,
            (*beside[1], Line(apart, slope, here), *others),
            (0.0,),
            (-4.5, max(3.6, slope.max().item())),
        ),
    )
    whole = " The other words keep their proportions." if "logits" in component.columns else ""
    choice = " Further slopes: other choices of its gradient." if others else ""
    return Picture(
        panels,
        f"One token on policy.{whole} Left of 0 the policy has lost what the reference had, right of it the policy has gained.{choice}",
    )


def _other_gradients(component: Component, own: Tensor, apart: Tensor, log_prob: Tensor, ref: Tensor) -> list[Line]:
    """Return what ``gradient`` makes of the slope where it has a choice; choices that agree on policy share a line."""
    field = component.params.model_fields.get("gradient")
    choices = [c for c in get_args(field.annotation) if c != field.default] if field is not None else []
    agreed: list[tuple[Tensor, list[str]]] = []
    for choice in choices:
        moved = log_prob.detach().requires_grad_()
        columns = {"log_prob": moved, "ref_log_prob": ref, "old_log_prob": moved.detach()}
        value = call(component, _tokens(apart.shape[0]), columns, {"gradient": choice})
        (slope,) = torch.autograd.grad(value.sum(), moved)
        same = next((names for line, names in agreed if torch.allclose(line, slope)), None)
        if same is not None:
            same.append(choice)
        elif not torch.allclose(slope, own):
            agreed.append((slope, [choice]))
    return [Line(apart, slope, ", ".join(names), tone) for (slope, names), tone in zip(agreed, ("second", "third"), strict=False)]


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
    """Draw what each bin is taught, which the gradient at no opinion gives away, and what a confident critic pays."""
    if "value_logits" not in component.columns:
        raise NoPicture("it reads no value")
    settings = settings_of(component)
    low, high = float(settings.get("low", 0.0)), float(settings.get("high", 1.0))
    bins, place = 21, torch.arange(1.0, 22.0, dtype=torch.float64)
    taught, costs = [], []
    for share, tone in ((0.31, "first"), (0.75, "second")):
        paid, label = low + share * (high - low), f"return {low + share * (high - low):g}"
        flat = torch.zeros(1, bins, dtype=torch.float64, requires_grad=True)
        loss = call(component, _tokens(1), {"value_logits": flat, "returns": torch.tensor([paid], dtype=torch.float64)})
        (slope,) = torch.autograd.grad(loss.sum(), flat)
        taught.append(Line(place, 1 / bins - slope[0], label, tone, dots=True))
        guess = torch.linspace(1, bins, 161, dtype=torch.float64)
        said = -((place[None] - guess[:, None]) ** 2) / 2
        loss = call(component, _tokens(161), {"value_logits": said, "returns": torch.full((161,), paid, dtype=torch.float64)})
        costs.append(Line(guess, loss.detach(), label, tone))
    panels = (Panel("What each bin is taught", "bin", tuple(taught)), Panel("Loss", "bin that the critic means", tuple(costs)))
    return Picture(panels, f"One token; {bins} bins from {low:g} to {high:g}. Right: a critic that is sure to within about one bin.")


def correction(component: Component) -> Picture:
    """Draw the weight of a token against the log-ratio of the old policy to the sampler; 0 where it is dropped."""
    if not {"rollout_log_prob", "old_log_prob", "log_prob"} & set(component.columns):
        raise NoPicture("it does not look at the mismatch")
    for far in (3, 6, 12):  # some only look at what is all but impossible
        apart = torch.linspace(-far, far, 61 if component.scope == "step" else 241, dtype=torch.float64)
        lines = _weights(component, apart)
        if any((line.y != 1).any() for line in lines):
            break
    else:
        raise NoPicture("it leaves these tokens as they are")
    alike = all(torch.equal(line.y, lines[0].y) for line in lines)
    shown = (Line(apart, lines[0].y),) if alike else tuple(lines)
    who = {
        "token": "One token.",
        "step": f"One token that has drifted by as much in a step of {_STEP}, whose others have drifted by at most 0.3.",
    }.get(component.scope, f"One sequence of {_EACH} tokens that all differ by the same log-ratio.")
    panel = Panel(
        "Weight of the token; 0 where it is dropped", r"log-ratio  $\log\,\pi_\mathrm{old}/\pi_\mathrm{sampler}$ [nats]", shown, (0.0,)
    )
    return Picture((panel,), who)


def _weights(component: Component, apart: Tensor) -> list[Line]:
    each = 1 if component.scope == "token" else _EACH
    sequences = _tokens(apart.shape[0], each)
    lines = []
    for sign, label, tone in ((1.0, "$A=+1$", "first"), (-1.0, "$A=-1$", "second")):
        moved = sequences.spread(apart)
        old = torch.full_like(moved, REST)
        columns = {
            "old_log_prob": old, "log_prob": old, "rollout_log_prob": old - moved,
            "advantages": torch.full_like(moved, sign), "rewards": torch.full_like(apart, max(sign, 0.0)),
        }  # fmt: skip
        if component.scope == "step":
            weight = torch.stack([_one(component, x, sign) for x in apart.tolist()])
        else:
            weight = sequences.mean(_applied(component, sequences, columns))
        lines.append(Line(apart, weight, label, tone))
        if not {"advantages", "rewards"} & set(component.columns):
            break
    return lines


def _applied(component: Component, sequences: Sequences, columns: dict[str, Tensor]) -> Tensor:
    weight, keep = call(component, sequences, columns)
    size = sequences.index.shape[0]
    weight = torch.ones(size, dtype=torch.float64) if weight is None else weight.detach().to(torch.float64)
    return weight if keep is None else torch.where(keep, weight, 0.0)


def _one(component: Component, far: float, sign: float) -> Tensor:
    """Return the weight of a token that alone in a step has drifted."""
    moved = torch.linspace(-0.3, 0.3, _STEP, dtype=torch.float64)
    moved[0] = far
    old = torch.full_like(moved, REST)
    columns = {"old_log_prob": old, "log_prob": old, "rollout_log_prob": old - moved, "advantages": torch.full_like(moved, sign)}
    return _applied(component, _tokens(_STEP), columns)[0]
