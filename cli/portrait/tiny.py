"""Tiny batches: every column of the vocabulary has a plain value, so that a component can be called on what it names."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...batch import Sequences
from ...registry import FIELDS, Component, Level, LossaryError, Totals
from .examples import settings_of

REST = -2.0
"""The log-probability of every token before anything moves: 0.135, so that a ratio of 7 is still a probability."""
WORDS = 6
"""Tokens in the vocabulary, where a component reads whole distributions."""


class NoPicture(LossaryError):
    """A component cannot be called on a tiny batch, so there is nothing to draw."""


def column(name: str, sequences: Sequences) -> Tensor:
    """Return the plain value of a column, one per token or sequence as the vocabulary says."""
    n, s = sequences.index.shape[0], sequences.lengths.shape[0]
    field = FIELDS.get(name)
    if field is None:
        raise NoPicture(f"the column {name!r} is not in the built-in vocabulary")
    size = s if field.level is Level.SEQUENCE else n
    if name == "teacher_topk_ids":
        return torch.arange(WORDS).expand(n, WORDS)
    if field.wide:
        return torch.zeros(size, 3, dtype=torch.long if field.integer else torch.float64)
    if name == "positions":
        return sequences.places
    if name == "sequence_ids":
        return torch.arange(s)
    if name == "group_ids":
        return sequences.groups if sequences.groups is not None else torch.zeros(s, dtype=torch.long)
    if field.integer:
        return torch.zeros(size, dtype=torch.long)
    if field.unit == "nats":
        return torch.full((size,), 1.0 if name == "entropy" else 0.0 if name == "log_z" else REST, dtype=torch.float64)
    return torch.full(
        (size,), {"correction": 1.0, "sum_pi_squared": 0.3, "noise": 0.5, "demonstration": 1.0}.get(name, 0.0), dtype=torch.float64
    )


def distribution(log_prob: Tensor) -> Tensor:
    """Return logits ``[n, WORDS]`` whose word 0, the sampled one, has the log-probability given; the others keep their proportions."""
    rest = torch.log(-torch.expm1(log_prob.clamp(max=-1e-9)))
    return torch.cat([log_prob[:, None], rest[:, None] + _others(log_prob)], dim=1)


def raised(logit: Tensor) -> Tensor:
    """Return logits ``[n, WORDS]`` whose word 0 stands at ``logit`` above the sum of all others."""
    return torch.cat([logit[:, None], _others(logit).expand(logit.shape[0], -1)], dim=1)


def _others(like: Tensor) -> Tensor:
    return torch.tensor([8.0, 4.0, 2.0, 1.0, 1.0], dtype=like.dtype).div(16).log()


def call(
    component: Component,
    sequences: Sequences,
    columns: Mapping[str, Tensor],
    params: Mapping[str, Any] | None = None,
    special: Mapping[str, Any] | None = None,
) -> Any:
    """Call a component on ``columns``, plain values for the rest; a 0-d report, where there is one, is left off.

    A component that the tiny batch does not suit raises ``NoPicture``.
    """
    asked = []
    told = settings_of(component) | dict(params or {})
    beside = {"sequences": sequences, "totals": totals(sequences), "step": torch.zeros((), dtype=torch.float64), **(special or {})}
    if component.stateful and component.init is not None:
        beside.setdefault("state", component.init(**told))
    for i in component.inputs:
        if i.name in beside:
            asked.append(beside[i.name])
        elif i.optional and i.name not in columns:
            asked.append(None)
        else:
            asked.append(_levelled(columns, i.name, i.level, sequences))
    try:
        out = component.function(*asked, **told)
    except LossaryError as error:
        raise NoPicture(f"{component.name!r} does not take a tiny batch: {error}") from error
    return _result(component, out)


def _levelled(columns: Mapping[str, Tensor], name: str, level: Level | None, sequences: Sequences) -> Tensor:
    if name in columns:
        x = columns[name]
    elif name in ("logits", "ref_logits", "teacher_logits", "teacher_topk_log_prob"):
        source = name.replace("logits", "log_prob").replace("topk_", "")
        x = distribution(columns.get(source, torch.full(sequences.index.shape, REST, dtype=torch.float64)))
    elif name == "value_logits":
        raise NoPicture("a critic of bins has no tiny batch")
    else:
        x = column(name, sequences)
    there = FIELDS[name].level
    if there is Level.SEQUENCE and level is Level.TOKEN:
        return sequences.spread(x)
    return x.index_select(0, sequences.offsets) if there is Level.TOKEN and level is Level.SEQUENCE else x


def totals(sequences: Sequences) -> Totals:
    """Return the counts of a step that is this batch and nothing more."""
    counts = [sequences.lengths.sum(), (sequences.lengths > 0).sum(), torch.tensor(0 if sequences.slots is None else len(sequences.slots))]
    tokens, filled, groups = (x.to(torch.float64) for x in counts)
    return Totals(tokens, filled, groups, tokens)


def _result(component: Component, out: Any) -> Any:
    """Take state and report off."""
    if component.stateful:
        *head, _ = out
        out = tuple(head) if len(head) > 1 else head[0]
    reports = isinstance(out, tuple) and isinstance(out[-1], Mapping)
    return out[0] if reports else out
