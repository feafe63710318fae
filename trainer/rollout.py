"""Rollouts: who samples from the policy, and what they hand back."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor

from ..models import LanguageModel
from ..numerics import Softening


@dataclass(frozen=True)
class SamplingParams:
    """How to sample: at ``temperature``; or the likeliest token each time if ``greedy``.

    Of the distribution at that temperature the ``top_k`` likeliest tokens are left, and of those the fewest that hold ``top_p`` of it.
    """

    max_new_tokens: int
    temperature: float = 1.0
    greedy: bool = False
    top_p: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens}: at least one token must be sampled")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} is not positive; for the likeliest token say greedy=True")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is not within (0, 1]")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k={self.top_k}: at least one token must be left; None leaves all")


@dataclass(frozen=True)
class Rollout:
    """One completion of one prompt.

    Parameters
    ----------
    prompt_ids, completion_ids
        Token ids; the completion holds the end of sequence if that was sampled.
    log_probs
        One per completion token, in nats, under the distribution it was drawn from: temperature, top-k and top-p included, and 0
        when greedy, which is a point mass.
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


class RolloutBackend(Protocol):
    """Token ids in, token ids out: what an inference engine has to offer."""

    def generate(self, prompts: list[list[int]], n: int, sampling: SamplingParams, seed: int) -> list[Rollout]:
        """Return ``n`` completions of each prompt, all of the first prompt's first; the same seed gives the same result."""
        ...

    def update_weights(self, named_tensors: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Take the policy's weights over; later rollouts carry ``version``."""
        ...


def left_pad(sequences: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return ids ``[B, T]`` and their boolean mask, every sequence ending in the last column."""
    width = max(map(len, sequences))
    ids = torch.tensor([[pad_id] * (width - len(s)) + list(s) for s in sequences])
    lengths = torch.tensor([len(s) for s in sequences])
    return ids, torch.arange(width) >= width - lengths[:, None]


class TorchBackend:
    """Sample from a copy of a model, all rows at once, with a cache of keys and values.

    Parameters
    ----------
    model
        Copied: training it changes no rollout before ``update_weights(model.state_dict().items(), version)``.
    pad_id, eos_id
        The id that fills up short prompts, and the one that ends a completion.
    """

    def __init__(self, model: LanguageModel, *, pad_id: int, eos_id: int) -> None:
        self._model = cast(Any, copy.deepcopy(model)).eval().requires_grad_(False)
        self._soften = Softening(model.scale, model.softcap)
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
        cache = self._model.cache()
        ended = torch.zeros(len(rows), dtype=torch.bool, device=device)
        tokens: list[Tensor] = []
        log_probs: list[Tensor] = []
        for _ in range(sampling.max_new_tokens):
            hidden = self._model(ids, mask, cache)[:, -1]
            token, log_prob = _draw(self._soften(self._model.lm_head(hidden)), sampling, generator)
            tokens.append(token)
            log_probs.append(log_prob)
            ended |= token == self._eos_id
            if ended.all():
                break
            # An ended row keeps sampling: what follows its end is cut off below, and its neighbours never see it.
            ids, mask = token[:, None], torch.nn.functional.pad(mask, (0, 1), value=True)
        return [
            completion_of(prompt, completion, scores, self._eos_id, self._version)
            for prompt, completion, scores in zip(
                rows, torch.stack(tokens, dim=1).tolist(), torch.stack(log_probs, dim=1).tolist(), strict=True
            )
        ]


def completion_of(prompt: list[int], completion: list[int], log_probs: list[float], eos_id: int, version: int) -> Rollout:
    """Return a row of a batch as a rollout: what follows its end of sequence is cut off."""
    stopped = eos_id in completion
    length = completion.index(eos_id) + 1 if stopped else len(completion)
    return Rollout(prompt, completion[:length], log_probs[:length], "stop" if stopped else "length", version)


def _draw(logits: Tensor, sampling: SamplingParams, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a token of each row of ``logits [B, V]`` and its log-probability, both ``[B]``."""
    if sampling.greedy:
        return logits.argmax(dim=-1), logits.new_zeros(logits.shape[0])
    log_probs = processed(logits, sampling)
    token = torch.multinomial(log_probs.exp(), 1, generator=generator)
    return token[:, 0], log_probs.gather(1, token)[:, 0]


def processed(logits: Tensor, sampling: SamplingParams) -> Tensor:
    """Return the log-probabilities ``[B, V]`` that are sampled from: ``-inf`` where a token cannot come; ties at a limit all stay."""
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < logits.shape[-1]:
        least = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = torch.where(logits >= least, logits, -torch.inf)
    if sampling.top_p < 1:
        ordered = logits.sort(dim=-1, descending=True).values
        before = torch.softmax(ordered, dim=-1).cumsum(dim=-1) - torch.softmax(ordered, dim=-1)
        # The likeliest always stays: nothing is before it.
        least = torch.where(before < sampling.top_p, ordered, torch.inf).amin(dim=-1, keepdim=True)
        logits = torch.where(logits >= least, logits, -torch.inf)
    return torch.log_softmax(logits, dim=-1)
