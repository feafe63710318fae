"""Advantages, rewards and filters: who gets how much credit."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...batch import Sequences
from ...registry import Component
from .examples import settings_of
from .picture import Line, Panel, Picture
from .tiny import REST, NoPicture, call

GROUP = 8
LENGTH = 12
TURNS = 3
_ALONG = ("turns", "old_values", "prm_log_prob", "token_rewards")
"""Columns by which credit differs along a response."""


def advantage(component: Component) -> Picture:
    """Draw the advantage of right and wrong answers, the credit along a response, or what becomes of given advantages."""
    reads = set(component.columns)
    if reads & {"teacher_log_prob", "ref_log_prob"} and not reads & {"rewards", "prm_log_prob"}:
        return _judged(component)
    if "advantages" in reads:
        return _reshaped(component)
    if reads & set(_ALONG) and not _level(component):
        return _along(component)
    if reads & {"rewards", "component_rewards", "token_rewards"}:
        return _by_count(component)
    raise NoPicture("it reads no reward")


def _group(right: int, tokens: int) -> tuple[Sequences, dict[str, Tensor]]:
    """Return a group of which ``right`` answers are right, and every reward it may be asked for."""
    sequences = Sequences.of(torch.full((GROUP,), tokens), GROUP * tokens, torch.zeros(GROUP, dtype=torch.long), 1)
    rewards = (torch.arange(GROUP) < right).to(torch.float64)
    turns = sequences.places * TURNS // tokens
    some = (torch.arange(GROUP) % 2).to(torch.float64)
    wave = torch.sin(sequences.places.to(torch.float64) * 1.3)
    columns = {
        "rewards": rewards, "token_rewards": sequences.place_last(rewards), "frozen_rewards": rewards.expand(GROUP, GROUP),
        "baseline_rewards": torch.full_like(rewards, 0.5),
        "component_rewards": torch.stack([rewards, torch.ones_like(rewards)], dim=1),
        "turn_rewards": torch.stack([1 - some, some, rewards], dim=1), "turns": turns,
        "old_values": 0.3 + 0.4 * sequences.places.to(torch.float64) / max(tokens - 1, 1), "bootstrap_values": torch.full_like(rewards, 0.7),
        "prm_log_prob": REST + wave, "rollout_log_prob": REST - 0.4 * wave,
    }  # fmt: skip
    return sequences, columns


def _per_token(component: Component, sequences: Sequences, columns: dict[str, Tensor], params: Mapping[str, Any] | None = None) -> Tensor:
    out = call(component, sequences, columns, params)
    made = out["advantages"] if isinstance(out, dict) else out
    return made if made.shape[0] == sequences.index.shape[0] else sequences.spread(made)


def _level(component: Component) -> bool:
    """Whether all tokens of an answer get the same, so that the answer is all there is to show."""
    sequences, columns = _group(GROUP // 2, LENGTH)
    made = _per_token(component, sequences, columns).reshape(GROUP, LENGTH)
    return torch.equal(made, made[:, :1].expand_as(made))


def _judged(component: Component) -> Picture:
    """Draw what another model's opinion of a token makes of its advantage."""
    other = "teacher" if "teacher_log_prob" in component.columns else "ref"
    apart = torch.linspace(-3, 3, 241, dtype=torch.float64)
    sequences = Sequences.of(torch.ones(241, dtype=torch.long), 241, torch.arange(241), 241)
    old = torch.full_like(apart, REST)
    cases = [("$A=+1$", "first", 1.0), ("$A=-1$", "second", -1.0)]
    if any(i.name == "advantages" and i.optional for i in component.inputs):  # it makes them, and may add to others
        cases = [("", "first", 0.0)]
    lines = []
    for label, tone, sign in cases:
        columns = {"advantages": torch.full_like(apart, sign), "old_log_prob": old, f"{other}_log_prob": old + apart}
        lines.append(Line(apart, _per_token(component, sequences, columns), label, tone))
    against = rf"log-ratio  $\log\,\pi_\mathrm{{{other}}}/\pi_\mathrm{{old}}$ [nats]"
    liked = "teacher likes the token more" if other == "teacher" else "reference gives the token more"
    return Picture(
        (Panel("Advantage after it", against, tuple(lines), (0.0,)),), f"One token. Right of 0 the {liked} than the policy does."
    )


def _by_count(component: Component) -> Picture:
    counts = torch.arange(GROUP + 1)
    right, wrong = [], []
    for c in counts.tolist():
        sequences, columns = _group(c, 4)
        each = sequences.mean(_per_token(component, sequences, columns))
        right.append(each[:c].mean())
        wrong.append(each[c:].mean())
    x = counts.to(torch.float64)
    lines = (
        Line(x[1:], torch.stack(right)[1:], "right answers", "first", dots=True),
        Line(x[:-1], torch.stack(wrong)[:-1], "wrong answers", "second", dots=True),
    )
    beside = " The other component of the reward is earned by all." if "component_rewards" in component.columns else ""
    if "frozen_rewards" in component.columns:
        beside += " The reference answers right as often."
    panel = Panel("Advantage of an answer", f"right answers among the {GROUP} of a group", lines)
    return Picture((panel,), f"A group of {GROUP} answers to one prompt, rewarded with 1 when right and 0 when wrong.{beside}")


def _along(component: Component) -> Picture:
    sequences, columns = _group(GROUP // 2, LENGTH)
    x = torch.arange(1, LENGTH + 1, dtype=torch.float64)
    said = f"Two of {GROUP} responses of {LENGTH} tokens, half of them right: the reward, 1 or 0, comes at the end."
    if "old_values" in component.columns:
        said += " The critic's value rises from 0.3 to 0.7 in both."
    if "turn_rewards" in component.columns:
        said += " Of its first two turns the right answer did the first well, the wrong one the second."
    if "prm_log_prob" in component.columns:
        said += " The implicit process reward goes up and down along each."
    if "rollout_log_prob" in component.columns:
        said += " The sampler's probabilities went up and down around the policy's."
    at = tuple(LENGTH / TURNS * k + 0.5 for k in range(1, TURNS)) if "turns" in component.columns else ()
    settings = settings_of(component)
    decays = [f"{key}" for key in ("lam", "lam_policy") if isinstance(settings.get(key), float) and settings[key] > 0.9]
    panels = []
    for params in ({}, *({key: 0.8} for key in decays[:1])):
        made = _per_token(component, sequences, columns, params).reshape(GROUP, LENGTH)
        lines = [Line(x, made[0], "right answer", "first", dots=True), Line(x, made[-1], "wrong answer", "second", dots=True)]
        if "old_values" in component.columns:
            lines.append(Line(x, columns["old_values"].reshape(GROUP, LENGTH)[0], "critic", "faint"))
        told = {key: params.get(key, settings[key]) for key in decays[:1]}
        title = "".join(f"Advantage, {key}: {v:g}" for key, v in told.items()) or "Advantage of each token"
        panels.append(Panel(title, "token of the response", tuple(lines), at))
    return Picture(tuple(panels), said)


def _reshaped(component: Component) -> Picture:
    n = 25
    sequences = Sequences.of(torch.tensor([n]), n, torch.zeros(1, dtype=torch.long), 1)
    for scale in (1, 8):  # what only catches outliers is not seen among small ones
        given = torch.linspace(-2 * scale, 4 * scale, n, dtype=torch.float64)
        made = _per_token(component, sequences, {"advantages": given})
        if not torch.equal(made, given):
            break
    lines = (Line(given, given, "unchanged", "faint"), Line(given, made, component.name, "first"))
    panel = Panel("Advantage after it", "advantage before it", lines, (0.0,))
    said = f"A step of one sequence of {n} tokens whose advantages lie evenly between {-2 * scale} and {4 * scale}."
    return Picture((panel,), said)


def reward(component: Component) -> Picture:
    """Draw what becomes of a reward, against the response's length where a length stands in the settings."""
    if "rewards" not in component.columns:
        raise NoPicture("it changes the rewards of tokens")
    settings = settings_of(component)
    spans = [int(v) for v in settings.values() if isinstance(v, int | float) and not isinstance(v, bool) and v >= 64]
    if spans and "sequences" in component.columns:
        length = torch.linspace(1, 1.2 * max(spans), 121).long()
        lines = []
        for paid, label, tone in ((1.0, "reward 1", "first"), (0.0, "reward 0", "second")):
            sequences = Sequences.of(length, int(length.sum()), torch.arange(len(length)), len(length))
            rewards = torch.full((len(length),), paid, dtype=torch.float64)
            truncated = (length > max(spans)).to(torch.float64)
            lines.append(
                Line(length.to(torch.float64), call(component, sequences, {"rewards": rewards, "truncated": truncated}), label, tone)
            )
        at = (float(max(spans)),)
        shown = ", ".join(f"{k}: {v}" for k, v in settings.items() if isinstance(v, int | float) and v in spans)
        return Picture(
            (Panel("Reward after it", "length of the response [tokens]", tuple(lines), at),), f"Responses of all lengths; {shown}."
        )
    if component.scope == "group" and "sequences" in component.columns:
        length = torch.tensor([100 * k for k in range(1, GROUP + 1)])
        sequences = Sequences.of(length, int(length.sum()), torch.zeros(GROUP, dtype=torch.long), 1)
        columns = {
            "rewards": torch.ones(GROUP, dtype=torch.float64),
            "prompt_lengths": torch.full((GROUP,), 100),
            "turns": torch.zeros_like(sequences.index),
        }
        line = Line(length.to(torch.float64), call(component, sequences, columns), dots=True)
        said = f"A group of {GROUP} answers of reward 1 and of as many different lengths."
        return Picture((Panel("Reward after it", "length of the response [tokens]", (line,)),), said)
    n = 81
    sequences = Sequences.of(torch.full((n,), 4), 4 * n, torch.zeros(n, dtype=torch.long), 1)
    cases = [("finished", "first", 0.0), ("cut at the length limit", "second", 1.0)] if "truncated" in component.columns else []
    for scale in (1, 8):  # what only catches outliers is not seen among small ones
        given = torch.linspace(-2 * scale, 2 * scale, n, dtype=torch.float64)
        lines = [Line(given, given, "unchanged", "faint")]
        for label, tone, cut in cases or [(component.name, "first", 0.0)]:
            made = call(component, sequences, {"rewards": given, "truncated": torch.full_like(given, cut)})
            lines.append(Line(given, made, label, tone))
        if not all(torch.equal(line.y, given) for line in lines):
            break
    else:
        raise NoPicture("with its defaults it changes nothing")
    panel = Panel("Reward after it", "reward before it", tuple(lines), (0.0,))
    same = ", each of them one token 4 times" if "token_ids" in component.columns else " and of equal length"
    return Picture((panel,), f"{n} sequences of one group{same}.")


def kept(component: Component) -> Picture:
    """Draw whether a group stays, against how many of its answers are right."""
    if "rollout_log_prob" in component.columns:
        return _kept_near(component)
    if "rewards" not in component.columns:
        raise NoPicture("it does not look at rewards")
    counts = torch.arange(GROUP + 1)
    share = []
    for c in counts.tolist():
        sequences, columns = _group(c, 4)
        share.append(call(component, sequences, columns).to(torch.float64).mean() * GROUP)
    panel = Panel(
        "Answers that stay", f"right answers among the {GROUP} of a group", (Line(counts.to(torch.float64), torch.stack(share), dots=True),)
    )
    return Picture((panel,), f"A group of {GROUP} answers to one prompt, rewarded with 1 when right and 0 when wrong.")


def _kept_near(component: Component) -> Picture:
    apart = torch.linspace(-3, 3, 241, dtype=torch.float64)
    sequences = Sequences.of(torch.full((241,), 4), 964, torch.arange(241), 241)
    old = torch.full((964,), REST, dtype=torch.float64)
    stays = call(component, sequences, {"old_log_prob": old, "rollout_log_prob": old - sequences.spread(apart)}).to(torch.float64)
    against = r"log-ratio  $\log\,\pi_\mathrm{old}/\pi_\mathrm{sampler}$ [nats]"
    panel = Panel("1 where the sequence stays, 0 where it leaves", against, (Line(apart, stays),), (0.0,))
    return Picture((panel,), "One sequence of 4 tokens that all differ by the same log-ratio.")
