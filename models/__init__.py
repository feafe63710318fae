"""Models that a run trains, and the tokenizers that belong to them."""

from .chars import Chars, UnknownCharacter
from .family import Decoder, Family, ModelError, SmallFamily, Tokenizer, prompt_within
from .gpt import GPT, KVCache

__all__ = [
    "GPT", "Chars", "Decoder", "Family", "KVCache", "ModelError", "SmallFamily", "Tokenizer", "UnknownCharacter", "prompt_within",
]  # fmt: skip
