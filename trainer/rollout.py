"""Rollouts: who samples from the policy, and what they hand back."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from ..models import Decoder


@dataclass(frozen=True)
class SamplingParams:
    """How to sample: at ``temperature``, or the likeliest token each time if ``greedy``."""

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    top_k: int | None = None
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: at least one token must be sampled")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} is not positive; for the likeliest token say greedy=True")
        if not 0 < self.top_p <= 1 or (self.top_k is not None and self.top_k < 1):
            raise ValueError(f"top_p={self.top_p}, top_k={self.top_k}: expected 0 < top_p <= 1 and top_k of at least 1")


@dataclass(frozen=True)
class Rollout:
    """One completion of one prompt.

    Parameters
    ----------
    prompt_ids, completion_ids
        Token ids; the completion holds the end of sequence if that was sampled.
    log_probs
        One per completion token, in nats, under the distribution it was drawn from: temperature, top-k and top-p included, and
        0 when greedy, which is a point mass. NaN where ``loss_mask`` is false.
    finish_reason
        ``"stop"`` at the end of sequence, ``"length"`` when the tokens ran out.
    policy_version
        Of the weights that sampled it.
    """

    prompt_ids: list[int]
    completion_ids: list[int]
    log_probs: list[float]
    finish_reason: Literal["stop", "length"]
    policy_version: int
    loss_mask: list[bool] | None = None
    """False at tokens that a tool or an environment wrote; none: the policy wrote all."""


class RolloutBackend(Protocol):
    """Token ids in, token ids out: what an inference engine has to offer."""

    def generate(self, prompts: list[list[int]], n: int, sampling: SamplingParams, seed: int) -> list[Rollout]:
        """Return ``n`` completions of each prompt, all of the first prompt's first; the same seed gives the same result."""
        ...

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the policy's weights over; later rollouts carry ``version``."""
        ...


def backend_of(name: str, model: Decoder, *, pad_id: int, eos_id: int) -> RolloutBackend:
    """Return the backend of this name, with a copy of the model."""
    if name == "torch":
        return TorchBackend(model, pad_id=pad_id, eos_id=eos_id)
    from .hf_generate import GenerateBackend

    return GenerateBackend(model, pad_id=pad_id, eos_id=eos_id)


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids ``[B, T]`` and their boolean mask, every sequence ending in the last column."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences])
    lengths = torch.tensor([len(s) for s in sequences])
    return ids, torch.arange(width) >= width - lengths[:, None]


class TorchBackend:
    """Sample from a copy of a ``Decoder``, all rows at once, with a KV cache.

    Parameters
    ----------
    model
        Copied: training it changes no rollout before ``update_weights(model.state_dict().items(), version)``.
    pad_id, eos_id
        The id that fills up short prompts, and the one that ends a completion.
    """

    def __init__(self, model: Decoder, *, pad_id: int, eos_id: int) -> None:
        self._model = copy.deepcopy(cast(Any, model)).eval().requires_grad_(False)
        self._pad_id = pad_id
        self._eos_id = eos_id
        self._version = 0

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Copy the weights in; a missing or an unknown name is an error."""
        self._model.load_state_dict(dict(named_tensors))
        self._version = version

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], n: int, sampling: SamplingParams, seed: int) -> list[Rollout]:
        """Return ``n`` completions of each prompt, prompt-major."""
        device = self._model.lm_head.weight.device
        generator = torch.Generator(device).manual_seed(seed)
        rows = [prompt for prompt in prompts for _ in range(n)]
        ids, mask = (x.to(device) for x in left_pad(rows, self._pad_id))
        cache = self._model.new_cache()
        ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        tokens: list[Tensor] = []
        log_probs: list[Tensor] = []
        for _ in range(sampling.max_new_tokens):
            hidden = self._model(ids, mask, cache)[:, -1]
            token, log_prob = _draw(_logits(self._model, hidden), sampling, generator)
            tokens.append(token)
            log_probs.append(log_prob)
            ended |= token == self._eos_id
            if ended.all():
                break
            # An ended row keeps sampling: what follows its end is cut off below, and its neighbours never see it.
            ids, mask = token[:, None], torch.nn.functional.pad(mask, (0, 1), value=True)
        return [
            self._rollout(prompt, completion, scores)
            for prompt, completion, scores in zip(
                rows, torch.stack(tokens, dim=1).tolist(), torch.stack(log_probs, dim=1).tolist(), strict=True
            )
        ]

    def _rollout(self, prompt: list[int], completion: list[int], log_probs: list[float]) -> Rollout:
        stopped = self._eos_id in completion
        length = completion.index(self._eos_id) + 1 if stopped else len(completion)
        return Rollout(prompt, completion[:length], log_probs[:length], "stop" if stopped else "length", self._version)


def _logits(model: Decoder, hidden: Tensor) -> Tensor:
    logits: Tensor = model.lm_head(hidden).float() * model.logit_scale
    return logits if model.softcap is None else model.softcap * torch.tanh(logits / model.softcap)


def processed(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the log-probabilities ``[B, V]`` that a token is drawn from: temperature, then top-k, then top-p, then one sum of 1.

    Top-p keeps the fewest tokens whose mass reaches ``top_p``, the likeliest at least; of equals at the k-th place all stay.
    """
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        logits = logits.masked_fill(logits < logits.topk(sampling.top_k, dim=-1).values[:, -1:], -torch.inf)
    if sampling.top_p < 1:
        ordered, place = logits.sort(dim=-1, descending=True)
        mass = ordered.softmax(dim=-1)
        late = mass.cumsum(dim=-1) - mass >= sampling.top_p
        logits = logits.masked_fill(torch.zeros_like(late).scatter(-1, place, late), -torch.inf)
    return torch.log_softmax(logits, dim=-1)


def _draw(logits: Tensor, sampling: SamplingParams, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a token of each row of ``logits [B, V]`` and its log-probability, both ``[B]``."""
    if sampling.greedy:
        return logits.argmax(dim=-1), logits.new_zeros(logits.shape[0])
    log_probs = processed(logits, sampling)
    token = torch.multinomial(log_probs.exp(), 1, generator=generator)
    return token[:, 0], log_probs.gather(1, token)[:, 0]
