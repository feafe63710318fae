"""A character tokenizer: one id per character, for the bundled tasks."""

from collections.abc import Sequence
from string import ascii_lowercase, digits
from typing import Final


class UnknownCharacter(ValueError):
    """A text holds a character that the vocabulary lacks."""


class Chars:
    """A fixed vocabulary of lower-case letters, digits, space and punctuation.

    Ids 0, 1 and 2 are pad, begin and end of sequence; the characters follow. The order is part of every checkpoint's
    meaning: append to ``alphabet``, never insert.
    """

    specials: Final = ("<pad>", "<bos>", "<eos>")
    alphabet: Final = ascii_lowercase + digits + " +-*/=<>?!,.:;'()"
    pad_id: Final = 0
    bos_id: Final = 1
    eos_id: Final = 2

    def __init__(self) -> None:
        self._tokens = (*self.specials, *self.alphabet)
        self._ids = {character: len(self.specials) + i for i, character in enumerate(self.alphabet)}

    @property
    def vocab_size(self) -> int:
        """How many ids there are, specials included."""
        return len(self._tokens)

    def prompt(self, text: str) -> list[int]:
        """Return a question behind the begin of sequence."""
        return [self.bos_id, *self.encode(text)]

    def encode(self, text: str) -> list[int]:
        """Return one id per character; no special id is added."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise UnknownCharacter(f"{error.args[0]!r} in {text!r} is not among the characters {self.alphabet!r}") from None

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text before the first end of sequence.

        Any other special id is written out (``<pad>``) rather than dropped: one that a model sampled must not pass for a
        right answer.
        """
        ids = list(ids)
        stop = ids.index(self.eos_id) if self.eos_id in ids else len(ids)
        return "".join(self._tokens[i] for i in ids[:stop])
