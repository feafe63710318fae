"""Losses of the actor: what they cost and how hard they pull, against how far the policy has moved."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...batch import Sequences
from ...registry import Component, Level
from .picture import Line, Panel, Picture
from .tiny import REST, NoPicture, call, raised

TOGETHER = 4
"""Tokens of a sequence that move together, where a loss looks at whole sequences."""
OTHERS = 31
"""Tokens that stand still, where a loss looks at the whole step."""


@dataclass(frozen=True)
class Side:
    """One of the two lines: what speaks for the tokens, or against them."""

    label: str
    tone: str
    sign: float
    columns: Mapping[str, float]
    """Columns that hold one number throughout."""


def sides(component: Component) -> tuple[list[Side], str, str]:
    """Return the lines, how the gradient is called, and what to say of them."""
    reads = component.columns
    if "advantages" in reads:
        good, bad = {"advantages": 1.0, "rewards": 1.0}, {"advantages": -1.0, "rewards": 0.0}
        both = [Side("$A=+1$", "first", 1.0, good), Side("$A=-1$", "second", -1.0, bad)]
        return both, r"Gradient weight  $-\,\partial L/\partial\ell\;/\;A$", ""
    if any(name.startswith("teacher_") for name in reads):
        liked, disliked = {"teacher_log_prob": REST + 0.7}, {"teacher_log_prob": REST - 0.7}
        both = [Side("teacher likes it more", "first", 1.0, liked), Side("teacher likes it less", "second", 1.0, disliked)]
        return both, r"Pull  $-\,\partial L/\partial\ell$", " The teacher's probability is twice or half the old policy's."
    if "rewards" in reads:
        both = [Side("reward 1", "first", 1.0, {"rewards": 1.0}), Side("reward 0", "second", 1.0, {"rewards": 0.0})]
        return both, r"Pull  $-\,\partial L/\partial\ell$", ""
    return [Side("", "first", 1.0, {})], r"Pull  $-\,\partial L/\partial\ell$", ""


def policy(component: Component) -> Picture:
    """Draw loss and gradient against the importance ratio."""
    chosen, called, remark = sides(component)
    if not {"log_prob", "logits"} & set(component.columns):
        raise NoPicture("it reads no log-probability")
    run = {"group": _groups, "step": _steps}.get(component.scope, _alone)
    low, high = _window([(run, component, side) for side in chosen])
    ratio = torch.linspace(low, high, 161 if run is _steps else 401, dtype=torch.float64)
    losses, pulls = [], []
    for side in chosen:
        loss, slope = run(component, side, ratio.log())
        losses.append(Line(ratio, loss, side.label, side.tone))
        pulls.append(Line(ratio, -slope / side.sign, side.label, side.tone))
    against = r"ratio  $\pi/\pi_\mathrm{old}$" if "old_log_prob" in component.columns else r"ratio  $\pi/\pi_\mathrm{sampler}$"
    if not {"old_log_prob", "rollout_log_prob"} & set(component.columns):
        against = r"ratio  $\pi/\pi_\mathrm{before}$"
    title = "Loss"
    if high - low < 0.1:  # a loss of about 1 hardly changes over so short a way
        middle = len(ratio) // 2
        losses, title = [replace(line, y=line.y - line.y[middle]) for line in losses], "Loss, less that at ratio 1"
    panels = (Panel(title, against, tuple(losses), (1.0,)), Panel(called, against, tuple(pulls), (1.0,)))
    return Picture(panels, _said(component) + remark)


def _said(component: Component) -> str:
    if component.scope == "group":
        return f"One of two answers to a prompt moves, all its {TOGETHER} tokens together; the other, of the opposite merit, stays where it was."
    if component.scope == "step":
        return f"One token moves in a step of {OTHERS + 1}; the others stay where they were, half of them with A = +1, half with A = -1."
    if component.scope == "sequence":
        return f"One sequence, whose {TOGETHER} tokens all move together by the ratio shown."
    return "One token."


Run = Callable[[Component, Side, Tensor], tuple[Tensor, Tensor]]


def _alone(component: Component, side: Side, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Each move is a sequence of its own."""
    tokens = TOGETHER if component.scope == "sequence" else 1
    n = moves.shape[0]
    sequences = Sequences.of(torch.full((n,), tokens), n * tokens, torch.arange(n), n)
    moved = moves.clone().requires_grad_()
    log_prob = REST + sequences.spread(moved)
    held = {name: _filled(name, value, sequences) for name, value in side.columns.items()}
    loss = call(component, sequences, {"log_prob": log_prob, **held})
    each = sequences.mean(loss) if component.returns is Level.TOKEN else loss
    (slope,) = torch.autograd.grad(each.sum(), moved)
    return each.detach(), slope


def _groups(component: Component, side: Side, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Each move is the first of two sequences that answer one prompt."""
    n = moves.shape[0]
    sequences = Sequences.of(torch.full((2 * n,), TOGETHER), 2 * n * TOGETHER, torch.arange(n).repeat_interleave(2), n)
    moved = moves.clone().requires_grad_()
    log_prob = REST + sequences.spread(torch.stack([moved, torch.zeros_like(moved)], dim=1).flatten())
    other = next((s for s in sides(component)[0] if s is not side and s.tone != side.tone), side)
    held = {}
    for name, value in side.columns.items():
        pair = torch.tensor([value, other.columns[name]], dtype=torch.float64).repeat(n)
        held[name] = pair if name == "rewards" else sequences.spread(pair)
    loss = call(component, sequences, {"log_prob": log_prob, **held})
    if component.returns is Level.TOKEN:
        loss = sequences.mean(loss)
    (slope,) = torch.autograd.grad(loss.sum(), moved)
    return (loss if component.returns is Level.GROUP else loss[::2]).detach(), slope


def _steps(component: Component, side: Side, moves: Tensor) -> tuple[Tensor, Tensor]:
    """Each move is one token of a step."""
    n = OTHERS + 1
    sequences = Sequences.of(torch.ones(n, dtype=torch.long), n, torch.arange(n) // 2, n // 2)
    turn = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    losses, slopes = [], []
    for move in moves.tolist():
        moved = torch.tensor(move, dtype=torch.float64, requires_grad=True)
        log_prob = torch.cat([moved[None] + REST, torch.full((OTHERS,), REST, dtype=torch.float64)])
        held = {name: torch.cat([torch.tensor([value], dtype=torch.float64), turn[1:]]) for name, value in side.columns.items()}
        entropy = torch.cat([torch.tensor([2.0]), torch.linspace(0.1, 1.5, OTHERS)]).to(torch.float64)
        loss = call(component, sequences, {"log_prob": log_prob, "entropy": entropy, **held})
        (slope,) = torch.autograd.grad(loss.sum(), moved)
        losses.append(loss[0].detach())
        slopes.append(slope)
    return torch.stack(losses), torch.stack(slopes)


def _filled(name: str, value: float, sequences: Sequences) -> Tensor:
    size = sequences.lengths.shape[0] if name == "rewards" else sequences.index.shape[0]
    return torch.full((size,), value, dtype=torch.float64)


def _window(runs: list[tuple[Run, Component, Side]]) -> tuple[float, float]:
    """Return the range of ratios in which everything happens: a clip at 0.0003 and a cap at 5 are both to be seen."""
    out = torch.logspace(-4, 0.29, 60, dtype=torch.float64)
    moves = torch.cat([-out.flip(0), out])
    corners, room = [], math.inf
    for run, component, side in runs:
        _, slope = run(component, side, moves)
        change = slope.diff().abs()
        steep = moves[(moves > 0) & (slope.abs() > 12 * slope[len(out) - 1 : len(out) + 1].abs().max().clamp(min=1e-12))]
        room = min([room, *steep.tolist()[:1]])
        still = change <= 1e-9 * slope.abs().max().clamp(min=1e-12)
        leap = change > 0.8 * torch.maximum(slope[1:].abs(), slope[:-1].abs()).clamp(min=1e-12)
        bends = torch.nonzero((still[1:] != still[:-1]) | leap[1:] | leap[:-1]).squeeze(1) + 1
        corners += [x for x in moves[bends].tolist() if abs(x) > 2e-4]  # nearer than that lies only the start
    if corners and max(map(abs, corners)) < 0.02:
        furthest = max(map(abs, corners))
        return 1 - 3 * furthest, 1 + 3 * furthest
    far = 1.25 * math.exp(max(corners, default=0.0))
    return 0.02, max(min(2.4, math.exp(room)), far)  # what grows without end would flatten all that happens near 1


def auxiliary(component: Component) -> Picture:
    """Draw loss and gradient against the token's probability, or against the entropy where that is what it reads."""
    chosen, called, remark = sides(component)
    whole = "logits" in component.columns
    if whole or "log_prob" in component.columns:
        place, name, label = torch.linspace(0.02, 0.98, 193, dtype=torch.float64), "log_prob", r"probability of the token  $\pi$"
    elif "entropy" in component.columns:
        place, name, label = torch.linspace(0.0, 3.0, 61, dtype=torch.float64), "entropy", "entropy [nats]"
        called = r"Pull  $-\,\partial L/\partial H$"
    else:
        raise NoPicture("it reads neither a log-probability nor an entropy")
    if whole:
        called, remark = r"Pull on its logit  $-\,\partial L/\partial z$", " The other words keep their proportions." + remark
    n = place.shape[0]
    sequences = Sequences.of(torch.ones(n, dtype=torch.long), n, torch.arange(n), n)
    losses, pulls = [], []
    for side in chosen:
        moved = (place.logit() if whole else place.log() if name == "log_prob" else place).clone().requires_grad_()
        held = {key: _filled(key, value, sequences) for key, value in side.columns.items()}
        # A whole distribution moves by a logit, as a network moves it: by log-probability the slope would be without end near 1.
        moves = {"logits": raised(moved), "log_prob": torch.nn.functional.logsigmoid(moved)} if whole else {name: moved}
        loss = call(component, sequences, {**moves, **held})
        (slope,) = torch.autograd.grad(loss.sum(), moved)
        losses.append(Line(place, loss.detach(), side.label, side.tone))
        pulls.append(Line(place, -slope / side.sign, side.label, side.tone))
    return Picture((Panel("Loss", label, tuple(losses)), Panel(called, label, tuple(pulls))), "One token." + remark)
