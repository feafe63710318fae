"""What a run needs of a language model, whatever made it: hidden states, a head, a tokenizer, a way to keep the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ..registry import LossaryError
from .chars import Chars
from .gpt import GPT


class ModelError(LossaryError):
    """A model cannot be had, or cannot do what it is asked for."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def pad_id(self) -> int:
        """What fills up; never looked at."""
        ...

    @property
    def eos_id(self) -> int:
        """What ends an answer."""
        ...

    def prompt(self, text: str) -> list[int]:
        """Return what a model reads before it answers ``text``: the ids with all that belongs around them."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        ...

    def decode(self, ids: list[int]) -> str:
        """Return the text before the first end of sequence."""
        ...


class Decoder(Protocol):
    """A module that stops at the hidden states, so that the fused head can take over from there."""

    lm_head: nn.Module
    value_head: nn.Linear | None
    context: int
    logit_scale: float
    softcap: float | None

    def __call__(self, ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Tensor:
        """Return ``[B, T, H]``; with a cache, ids are the new ones and the mask covers all."""
        ...

    def put_head(self, head: nn.Module) -> None:
        """Put another module in the place of ``lm_head``, with the same names in a ``state_dict``."""
        ...

    def new_cache(self) -> Any:
        """Return an empty cache of keys and values."""
        ...


class Family(Protocol):
    """Makes the models of one run, all alike, and the tokenizer that belongs to them."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What turns text to the ids of its models."""
        ...

    @property
    def portable(self) -> bool:
        """Whether ``save`` has a form that others load."""
        ...

    def model(self, *, value_head: bool = False, seed: int = 0) -> Any:
        """Return a new model, a ``Decoder``."""
        ...

    def save(self, model: nn.Module, folder: Path) -> bool:
        """Write the model where others can load it; false where there is no such form."""
        ...


@dataclass(frozen=True)
class SmallFamily:
    """The built-in GPT over characters."""

    d_model: int
    layers: int
    heads: int
    tied: bool
    context: int
    tokenizer: Tokenizer = Chars()  # noqa: RUF009 it has no state
    portable: bool = False

    def model(self, *, value_head: bool = False, seed: int = 0) -> GPT:
        """Return a GPT whose initial weights follow from ``seed``."""
        sizes = {"d_model": self.d_model, "layers": self.layers, "heads": self.heads, "context": self.context}
        return GPT(Chars().vocab_size, tied=self.tied, value_head=value_head, seed=seed, **sizes)

    def save(self, model: nn.Module, folder: Path) -> bool:
        """Return false: nobody else loads it; the checkpoint holds it."""
        return False


def prompt_within(tokenizer: Tokenizer, text: str, new_tokens: int, context: int) -> list[int]:
    """Return the prompt's ids; one that leaves no room for the answer raises ``ModelError``, for nothing is cut off quietly."""
    ids = tokenizer.prompt(text)
    if len(ids) + new_tokens > context:
        raise ModelError(
            f"the prompt {text[:40]!r} has {len(ids)} tokens; with {new_tokens} to answer that is more than the model's context of {context}."
        )
    return ids
