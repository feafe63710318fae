"""What a rollout looks like and what it costs: lengths, padding, staleness, tokens per second."""

from collections.abc import Mapping, Sequence

from .data import Inputs
from .rollout import Rollout


def shape_of(inputs: Inputs, rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return lengths, the share of responses that were cut off, and the share of the model's ``[B, T]`` that is padding."""
    lengths = [len(r.completion_ids) for r in rollouts]
    written = sum(len(r.loss_mask) - sum(r.loss_mask) for r in rollouts if r.loss_mask is not None)
    cells, real = inputs.attention.numel(), sum(len(r.prompt_ids) for r in rollouts) + sum(lengths)
    return {
        "response_length/max": max(lengths),
        "response_length/min": min(lengths),
        "response_length/clip_ratio": sum(r.finish_reason == "length" for r in rollouts) / len(rollouts),
        "response/tool_tokens": written,
        "perf/padding_share": 1 - real / cells,
        "perf/total_num_tokens": real,
        "training/rollout_version": min(r.policy_version for r in rollouts),
    }


def throughput(shape: Mapping[str, float], laps: Mapping[str, float]) -> dict[str, float]:
    """Return seconds per step and tokens, prompts included, per second of it."""
    whole = sum(laps.values())
    return {"time/step": round(whole, 4), "time/tokens_per_second": round(shape["perf/total_num_tokens"] / max(whole, 1e-9), 1)}
