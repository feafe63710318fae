"""What a model says of the sampled tokens: log-probabilities, entropy, values."""

from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch, left_shift_padded
from ..pipeline import Logits, LossHead, Scores
from .data import Inputs
from .ranks import whole


def hidden_of(model: nn.Module, inputs: Inputs, batch: Batch) -> Tensor:
    """Return the packed hidden states ``[N, H]`` that speak of each sampled token; packed before any head touches them."""
    ids, attention = inputs.ids.index_select(0, batch.rows), inputs.attention.index_select(0, batch.rows)
    return batch.pack(left_shift_padded(model(ids, attention), inputs.width))


def head_of(model: Any, temperature: float) -> LossHead:
    """Return the head that speaks of the distribution that was sampled from; it shares the model's weight."""
    head, scale = model.lm_head, model.logit_scale / temperature
    return head if isinstance(head, LossHead) and head.softening.scale == scale else LossHead(head, scale=scale, softcap=model.softcap)


def policy_scores(model: Any, inputs: Inputs, batch: Batch, temperature: float) -> Scores:
    """Return log-probability and entropy, each ``[N]`` in nats, of the distribution that was sampled from."""
    return head_of(model, temperature).scores(hidden_of(model, inputs, batch), batch)


@torch.no_grad()
def ref_logits_of(reference: Any, inputs: Inputs, batch: Batch, temperature: float) -> Logits:
    """Return the reference's logits for each sampled token, of which a loss only ever spells out a chunk."""
    return Logits(
        hidden_of(reference, inputs, batch),
        whole(reference.lm_head.weight),
        reference.lm_head.bias,
        reference.logit_scale / temperature,
        reference.softcap,
    )


def values_of(critic: nn.Module, inputs: Inputs, batch: Batch, hidden: Tensor | None) -> Tensor:
    """Return the value ``[N]`` of the state before each sampled token; from the policy's packed ``hidden`` if the trunk is shared."""
    if hidden is not None:
        found: Tensor = critic(None, hidden)
    else:
        rows = Inputs(inputs.ids.index_select(0, batch.rows), inputs.attention.index_select(0, batch.rows), inputs.width)
        found = batch.pack(left_shift_padded(critic(rows, None), inputs.width))
    return found.squeeze(-1).to(torch.promote_types(found.dtype, torch.float32))


@torch.no_grad()
def said_now(policy: Any, critic: Any, inputs: Inputs, parts: list[Batch], whole: Batch, temperature: float) -> dict[str, Tensor]:
    """Return log-prob and entropy of a whole batch by its parts, and values if there is a critic."""
    hidden = [hidden_of(policy, inputs, p) for p in parts]
    scores = [head_of(policy, temperature).scores(h, p) for h, p in zip(hidden, parts, strict=True)]
    found = {n: all_at_once(parts, [s[i] for s in scores], whole) for i, n in enumerate(("log_prob", "entropy"))}
    if critic is not None:
        seen = [h if critic.trunk is None else None for h in hidden]
        found["values"] = all_at_once(parts, [values_of(critic, inputs, p, h) for p, h in zip(parts, seen, strict=True)], whole)
    return found


@torch.no_grad()
def all_at_once(parts: list[Batch], score: "list[Tensor]", whole: Batch) -> Tensor:
    """Return a column of the whole batch from the columns of its parts, whatever order the parts took the rows in."""
    out = score[0].new_empty(whole.sequences.index.shape[0])
    ordered, place = whole.rows.sort()
    for part, x in zip(parts, score, strict=True):
        begin = whole.sequences.offsets.index_select(0, place.index_select(0, torch.searchsorted(ordered, part.rows)))
        out[part.sequences.spread(begin) + part.sequences.places] = x
    return out
