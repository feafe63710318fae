"""Held-out accuracy: greedy answers to questions that training never asks."""

from ..models import Tokenizer, prompt_within
from ..registry import LossaryError
from ..tasks import Task
from .rollout import RolloutBackend, SamplingParams
from .turns import converse


def accuracy(backend: RolloutBackend, task: Task, tokens: Tokenizer, items: int, context: int) -> float:
    """Return the mean reward of the likeliest answer to each held-out item; one that does not fit the context raises ``ModelError``."""
    held_out = task.eval_items(items)
    if not held_out:
        raise LossaryError("the task has no held-out items to measure the accuracy with.")
    prompts = [prompt_within(tokens, item.prompt, task.max_new_tokens, context) for item in held_out]
    _, said = converse(backend, tokens, task, held_out, prompts, 1, SamplingParams(task.max_new_tokens, greedy=True), seed=0)
    rewards = [task.reward(item, text) for item, text in zip(held_out, said, strict=True)]
    return sum(rewards) / len(rewards)
