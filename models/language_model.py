"""What the trainer asks of a model and of its tokenizer: the same for the small GPT and for a stranger's."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from ..registry import LossaryError


class ModelError(LossaryError):
    """A model cannot be read, or is none of the kind that is needed."""


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def pad_id(self) -> int:
        """What fills up; never looked at."""

    @property
    def eos_id(self) -> int:
        """What ends a completion."""

    def prompt(self, text: str) -> list[int]:
        """Return a question as the model is used to being asked: with whatever stands before and after it."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text alone."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text before the first end of sequence; any other special token is written out."""


class LanguageModel(Protocol):
    """A causal model whose forward stops at the hidden states, so that a head which never holds ``[N, V]`` can go on from there.

    Its ``state_dict``, ``parameters`` and so on are those of a module, which it is.
    """

    lm_head: nn.Linear
    value_head: nn.Linear | None
    context: int
    """The most columns that a forward may see."""
    scale: float
    """What the logits are multiplied with, after ``softcap``."""
    softcap: float | None
    """``softcap * tanh(logits / softcap)``, where there is one."""

    def __call__(self, ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Tensor:
        """Return hidden states ``[B, T, H]``; with a cache, of new ids, where the mask ``[B, past + T]`` covers the old ones too."""

    def cache(self) -> Any:
        """Return an empty cache of keys and values, which a forward extends."""

    def save_pretrained(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write model and tokenizer in the family's own form."""
