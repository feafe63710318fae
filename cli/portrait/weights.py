"""Aggregations and coefficients: how much a token, a sequence and a term count."""

from types import SimpleNamespace

import torch

from ...batch import Sequences
from ...registry import Component
from .examples import settings_of
from .picture import Line, Panel, Picture
from .tiny import NoPicture, call

LENGTHS = (8, 16, 32, 64, 128, 256)


def aggregation(component: Component) -> Picture:
    """Draw the weight of a token and the share of a whole sequence, against its length."""
    n = len(LENGTHS)
    sequences = Sequences.of(torch.tensor(LENGTHS), sum(LENGTHS), torch.arange(n) // 2, n // 2)
    weight = call(component, sequences, {"rollout_lengths": 2 * sequences.lengths})
    x = torch.tensor(LENGTHS, dtype=torch.float64)
    against = "length of its sequence [tokens]"
    share = sequences.sum(weight)
    joined = component.scope != "group"
    token = Line(x, sequences.mean(weight), dots=True, joined=joined)
    whole = Line(x, share, tone="third", dots=True, joined=joined)
    panels = (
        Panel("Weight of a token", against, (token,), (), (0.0, weight.max().item() * 1.12), doubling=True),
        Panel("Weight of the whole sequence", against, (whole,), (), (0.0, share.max().item() * 1.12), doubling=True),
    )
    said = ", ".join(map(str, LENGTHS[:-1]))
    pairs = " Two and two of them answer the same prompt." if component.scope == "group" else ""
    if "rollout_lengths" in component.columns:
        pairs += " Each is half of its rollout."
    required = [f"{k}: {v}" for k, v in settings_of(component).items() if component.params.model_fields[k].is_required()]
    set_ = f" With {', '.join(required)}." if required else ""
    return Picture(panels, f"A step of {n} sequences, of {said} and {LENGTHS[-1]} tokens.{pairs}{set_}")


def coefficient(component: Component) -> Picture:
    """Draw the coefficient against the step; what it is told of the last step doubles its target first and then falls below it."""
    if not component.inputs:
        raise NoPicture("it never changes")
    settings = settings_of(component)
    spans = [v for v in settings.values() if isinstance(v, int) and not isinstance(v, bool)]
    end = int(1.3 * max(spans)) if "step" in component.columns and spans else 240
    steps = torch.arange(0, end + 1, max(end // 130, 1))
    told = "measured" in component.columns
    target = float(settings.get("target", 1.0))
    state = component.init(**settings) if component.init is not None else None
    values, seen = [], []
    for step in range(end + 1) if told or component.stateful else steps.tolist():
        now = (2.0 if step < end / 2 else 0.5) * target
        number = torch.tensor(now, dtype=torch.float64)
        measured = SimpleNamespace(token_mean=number, sequence_mean=number, sequences=torch.tensor(256.0, dtype=torch.float64))
        beside = {"step": torch.tensor(float(step), dtype=torch.float64), "measured": measured, "state": state}
        out = component.function(*(beside[i.name] for i in component.inputs), **settings)
        if component.stateful:
            out, state = out
        values.append(torch.as_tensor(out, dtype=torch.float64))
        seen.append(now)
    x = torch.arange(end + 1, dtype=torch.float64) if told or component.stateful else steps.to(torch.float64)
    panels = [Panel("Coefficient", "step", (Line(x, torch.stack(values)),))]
    said = ", ".join(f"{k}: {v}" for k, v in settings.items())
    if told:
        panels.append(
            Panel(
                "What was measured",
                "step",
                (Line(x, torch.tensor(seen, dtype=torch.float64), tone="third"), Line(x, torch.full_like(x, target), "target", "faint")),
            )
        )
        said += "; 256 sequences a step"
    return Picture(tuple(panels), f"With {said}.")
