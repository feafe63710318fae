"""From rollouts or demonstrations to a batch: padded token ids for the model, packed columns for the loss."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..batch import Batch
from ..models import Tokenizer, prompt_within
from ..tasks import Item, Task
from .rollout import Rollout, left_pad


@dataclass(frozen=True)
class Inputs:
    """What a model reads: prompts padded on the left, responses on the right, so that every response begins in one column."""

    ids: Tensor
    """``[B, P + R]``."""
    attention: Tensor
    """``[B, P + R]``, bool."""
    width: int
    """``R``."""


def assembled(prompts: list[list[int]], responses: list[list[int]], pad_id: int) -> tuple[Inputs, Tensor, Tensor]:
    """Return the model's inputs, the response mask ``[B, R]`` and the response ids ``[B, R]``."""
    left, real = left_pad(prompts, pad_id)
    width = max(map(len, responses))
    right = torch.tensor([[*r, *[pad_id] * (width - len(r))] for r in responses])
    mask = torch.arange(width) < torch.tensor([len(r) for r in responses])[:, None]
    return Inputs(torch.cat((left, right), 1), torch.cat((real, mask), 1), width), mask, right


def from_rollouts(rollouts: list[Rollout], rewards: list[float], samples_per_prompt: int, pad_id: int) -> tuple[Inputs, Batch]:
    """Return one update's inputs and batch; the samples of one prompt are one group."""
    inputs, mask, ids = assembled([r.prompt_ids for r in rollouts], [r.completion_ids for r in rollouts], pad_id)
    scores = torch.zeros(mask.shape)
    scores[mask] = torch.tensor([p for r in rollouts for p in r.log_probs])
    # The model reads what a tool wrote, but learns nothing from it: it is response to the model, and not to the loss.
    mask[mask.clone()] = torch.tensor([said for r in rollouts for said in (r.loss_mask or [True] * len(r.completion_ids))])
    batch = Batch.from_padded(
        mask,
        token_ids=ids,
        rollout_log_prob=scores,
        rewards=torch.tensor(rewards),
        group_ids=torch.arange(len(rollouts)) // samples_per_prompt,
        truncated=torch.tensor([float(r.finish_reason == "length") for r in rollouts]),
        prompt_lengths=torch.tensor([len(r.prompt_ids) for r in rollouts]),
        policy_version=torch.tensor([r.policy_version for r in rollouts]),
    )
    return inputs, batch


def from_demonstrations(items: list[Item], tokens: Tokenizer, context: int) -> tuple[Inputs, Batch]:
    """Return the task's own answers, end of sequence included, as a batch to imitate; one that does not fit raises ``ModelError``."""
    answers = [[*tokens.encode(item.answer), tokens.eos_id] for item in items]
    prompts = [prompt_within(tokens, item.prompt, len(said), context) for item, said in zip(items, answers, strict=True)]
    inputs, mask, ids = assembled(prompts, answers, tokens.pad_id)
    lengths = torch.tensor([len(p) for p in prompts])
    return inputs, Batch.from_padded(mask, token_ids=ids, prompt_lengths=lengths)


def training_items(task: Task, start: int, n: int) -> list[Item]:
    """Return ``n`` items of the task's endless list, from ``start`` on."""
    return [task.train_item(start + i) for i in range(n)]
