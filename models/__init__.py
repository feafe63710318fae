"""Models that a run trains, and the tokenizers that belong to them."""

from .chars import Chars, UnknownCharacter
from .gpt import GPT, KVCache

__all__ = ["GPT", "Chars", "KVCache", "UnknownCharacter"]
