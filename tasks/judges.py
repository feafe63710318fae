"""What an answer is worth, by name: for tasks whose questions come from a file."""

import re
from collections.abc import Callable

Judge = Callable[[str, str], float]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def exact_match(said: str, answer: str) -> float:
    """Return 1 for the answer word for word, but for space around it."""
    return float(said.strip() == answer.strip())


def contains(said: str, answer: str) -> float:
    """Return 1 where the answer stands anywhere in what was said, as words of its own."""
    return float(re.search(rf"(?<!\w){re.escape(answer.strip())}(?!\w)", said) is not None)


def last_number(said: str, answer: str) -> float:
    """Return 1 where the last number that was said equals the answer, however both are written."""
    ours, theirs = _numbers(said), _numbers(answer)
    return float(bool(ours and theirs) and ours[-1] == theirs[-1])


def _numbers(text: str) -> list[float]:
    return [float(found.replace(",", "")) for found in _NUMBER.findall(text)]


JUDGES: dict[str, Judge] = {"exact-match": exact_match, "contains": contains, "last-number": last_number}
