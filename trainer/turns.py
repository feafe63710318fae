"""Conversations: the policy speaks, a tool answers, the policy goes on. What the tool wrote is read, and carries no loss."""

import math
from collections.abc import Sequence
from dataclasses import replace

from ..models import Tokenizer
from ..tasks import Item, Task
from .rollout import Rollout, RolloutBackend, SamplingParams


def converse(
    backend: RolloutBackend,
    tokens: Tokenizer,
    task: Task,
    asked: Sequence[Item],
    prompts: list[list[int]],
    n: int,
    sampling: SamplingParams,
    seed: int,
) -> tuple[list[Rollout], list[str]]:
    """Return ``n`` rollouts of each prompt and what each said in its last turn.

    A task that has ``observe(item, said) -> str | None`` is asked after every turn that came to its end; its text enters the response
    and the policy goes on, until there is nothing to observe or the tokens run out, the tool's included.
    """
    rollouts = backend.generate(prompts, n, sampling, seed)
    begins = [0] * len(rollouts)  # where each one's last turn begins
    observe = getattr(task, "observe", None)
    going = list(range(len(rollouts))) if observe is not None else []
    turn = 0
    while going:
        turn, more = turn + 1, []
        for i in going:
            r = rollouts[i]
            seen = observe(asked[i], tokens.decode(r.completion_ids[begins[i] :])) if observe and r.finish_reason == "stop" else None
            ids = tokens.encode(seen) if seen else []
            if not ids:
                continue
            if len(r.completion_ids) + len(ids) >= sampling.max_new_tokens:
                rollouts[i] = replace(r, finish_reason="length")  # there was something to say, and no room to say it
                continue
            rollouts[i] = _extended(r, ids, [math.nan] * len(ids), said=False)
            begins[i] = len(rollouts[i].completion_ids)
            more.append(i)
        if more:
            room = max(sampling.max_new_tokens - begins[i] for i in more)
            heard = [rollouts[i].prompt_ids + rollouts[i].completion_ids for i in more]
            for i, new in zip(more, backend.generate(heard, 1, replace(sampling, max_new_tokens=room), seed + turn), strict=True):
                left = sampling.max_new_tokens - begins[i]
                reason = new.finish_reason if len(new.completion_ids) <= left else "length"
                rollouts[i] = replace(
                    _extended(rollouts[i], new.completion_ids[:left], new.log_probs[:left], said=True), finish_reason=reason
                )
        going = more
    return rollouts, [tokens.decode(r.completion_ids[begin:]) for r, begin in zip(rollouts, begins, strict=True)]


def _extended(r: Rollout, ids: list[int], log_probs: list[float], *, said: bool) -> Rollout:
    mask = (r.loss_mask or [True] * len(r.completion_ids)) + [said] * len(ids)
    return replace(r, completion_ids=r.completion_ids + ids, log_probs=r.log_probs + log_probs, loss_mask=mask)
