"""Held-out accuracy: greedy answers to questions that training never asks."""

from ..models.chars import Chars
from ..tasks import Task
from .rollout import RolloutBackend, SamplingParams


def accuracy(backend: RolloutBackend, task: Task, chars: Chars, items: int) -> float:
    """Return the mean reward of the likeliest answer to each held-out item."""
    held_out = task.eval_items(items)
    prompts = [[chars.bos_id, *chars.encode(item.prompt)] for item in held_out]
    rollouts = backend.generate(prompts, 1, SamplingParams(task.max_new_tokens, greedy=True), seed=0)
    rewards = [task.reward(item, chars.decode(r.completion_ids)) for item, r in zip(held_out, rollouts, strict=True)]
    return sum(rewards) / len(rewards)
