"""Rollouts by ``generate`` of transformers: slower than an engine, but every model and every trick of generation it knows."""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ..models import ModelError
from .rollout import Rollout, SamplingParams, left_pad


class GenerateBackend:
    """Sample from a copy of a Hugging Face decoder; its scores after processing are what ``rollout_log_prob`` reports."""

    def __init__(self, model: Any, *, pad_id: int, eos_id: int) -> None:
        if not hasattr(model, "inner"):
            raise ModelError("hf-generate samples from a Hugging Face model; the small GPT has the backend torch.")
        self._model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pad_id, self._eos_id, self._version = pad_id, eos_id, 0

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights in; a missing or an unknown name is an error."""
        self._model.load_state_dict(dict(named_tensors))
        self._version = version

    @torch.no_grad()
    def generate(self, prompts: list[list[int]], n: int, sampling: SamplingParams, seed: int) -> list[Rollout]:
        """Return ``n`` completions of each prompt, prompt-major; torch's global generator is put back as it was."""
        from transformers import GenerationConfig

        rows = [prompt for prompt in prompts for _ in range(n)]
        ids, mask = left_pad(rows, self._pad_id)
        chosen: dict[str, Any] = {"do_sample": False} if sampling.greedy else {"do_sample": True, "temperature": sampling.temperature}
        if not sampling.greedy:  # 0 switches top-k off; transformers' own default is 50
            chosen |= {"top_k": sampling.top_k or 0, "top_p": sampling.top_p}
        how = GenerationConfig(
            max_new_tokens=sampling.max_new_tokens, pad_token_id=self._pad_id, eos_token_id=self._eos_id,
            output_scores=True, return_dict_in_generate=True, **chosen,
        )  # fmt: skip
        # A model's own generation_config (repetition penalty, eos list) would be merged in: it is not what the recipe says.
        self._model.inner.generation_config = GenerationConfig()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            out = self._model.inner.generate(ids, attention_mask=mask.long(), generation_config=how)
        said = out.sequences[:, ids.shape[1] :]
        if sampling.greedy:
            scores = torch.zeros(said.shape)
        else:
            scores = torch.stack(out.scores, 1).float().log_softmax(-1).gather(-1, said[..., None])[..., 0]
        found = []
        for prompt, tokens, probs in zip(rows, said.tolist(), scores.tolist(), strict=True):
            stopped = self._eos_id in tokens
            length = tokens.index(self._eos_id) + 1 if stopped else len(tokens)
            found.append(Rollout(prompt, tokens[:length], probs[:length], "stop" if stopped else "length", self._version))
        return found
