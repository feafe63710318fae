"""Models that a run trains, and the tokenizers that belong to them."""

from .chars import Chars, UnknownCharacter
from .gpt import GPT, KVCache
from .language_model import LanguageModel, ModelError, Tokenizer

__all__ = ["GPT", "Chars", "KVCache", "LanguageModel", "ModelError", "Tokenizer", "UnknownCharacter"]
