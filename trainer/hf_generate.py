"""Rollouts by transformers' own ``generate``: whatever cache or trick a family needs is there, and nothing of it is ours to keep right."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..models.hugging_face import HFModel
from .rollout import Rollout, SamplingParams, completion_of, left_pad


class HFGenerateBackend:
    """Sample with ``generate``; its processed scores are the distribution that ``log_probs`` speak of."""

    def __init__(self, model: HFModel, *, pad_id: int, eos_id: int) -> None:
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pad_id, self._eos_id, self._version = pad_id, eos_id, 0

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights in; a missing or an unknown name is an error."""
        self._model.load_state_dict(dict(named_tensors))
        self._version = version

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], n: int, sampling: SamplingParams, seed: int) -> list[Rollout]:
        """Return ``n`` completions of each prompt, prompt-major."""
        rows = [prompt for prompt in prompts for _ in range(n)]
        device = self._model.lm_head.weight.device
        ids, mask = (x.to(device) for x in left_pad(rows, self._pad_id))
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            out = self._model.model.generate(input_ids=ids, attention_mask=mask.long(), **self._asked(sampling))
        tokens = out.sequences[:, ids.shape[1] :]
        if sampling.greedy:
            scores = torch.zeros(tokens.shape)
        else:
            said = torch.stack(out.scores, dim=1).float().log_softmax(dim=-1)
            scores = said.gather(2, tokens[..., None])[..., 0]
        return [
            completion_of(prompt, completion, log_probs, self._eos_id, self._version)
            for prompt, completion, log_probs in zip(rows, tokens.tolist(), scores.tolist(), strict=True)
        ]

    def _asked(self, sampling: SamplingParams) -> dict[str, Any]:
        """Say every setting: what a model's own generation config would add is not what the recipe says."""
        chosen = {} if sampling.greedy else {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or 0}
        return {
            "max_new_tokens": sampling.max_new_tokens,
            "do_sample": not sampling.greedy,
            "pad_token_id": self._pad_id,
            "eos_token_id": self._eos_id,
            "return_dict_in_generate": True,
            "output_scores": True,
            **chosen,
        }
