"""The words of a command line, as scripts have them: options, ``key=value``, variables, and nothing that would have to be run."""

import re
import shlex
from math import prod
from typing import Any

from ...pipeline import scalar
from ...registry import LossaryError

NAME = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}|\$(\w+)")
SUM = re.compile(r"\$\(\(([\d\s*+]+)\)\)")
CONSTANTS = {"True": True, "False": False, "true": True, "false": False, "None": None, "null": None}


def values_of_words(text: str, source: str) -> dict[str, Any]:
    """Return ``{key: value}``; several words after an option are a list, and a key said twice raises ``LossaryError``."""
    try:
        words = shlex.split(_filled(text))
    except ValueError as error:
        raise LossaryError(f"{source}: no command line: {error}.") from error
    out: dict[str, Any] = {}
    i = 0
    while i < len(words):
        word, i = words[i], i + 1
        if word == "--":
            continue
        if word.startswith("--") and "=" not in word:
            following = i
            while following < len(words) and not _begins(words[following]):
                following += 1
            said, i = [_value(w) for w in words[i:following]], following
            key, value = word[2:], True if not said else said[0] if len(said) == 1 else said
        elif re.match(r"[-+~]*[\w.@/][\w.@/-]*=", word):
            key, _, after = word.lstrip("-+~").partition("=")
            value = _value(after)
        else:
            continue  # the program's own name, or what it runs
        if key in out:
            raise LossaryError(f"{source}: {key} is said twice.")
        out[key] = value
    return out


def _begins(word: str) -> bool:
    """Whether a word is no value of the option before it; a negative number is one."""
    return bool(re.match(r"-+(?!inf$)[A-Za-z]|--$|[-+~]*[\w.@/][\w.@/-]*=", word))


def _value(word: str) -> Any:
    value = scalar(word)
    return CONSTANTS.get(value, value) if isinstance(value, str) else value


def _filled(text: str) -> str:
    """Take out lines that only set a variable and put its value where it stands; sums and products of whole numbers are worked out."""
    lines: list[str] = []
    known: dict[str, str] = {}
    for line in text.splitlines():
        set_here = re.match(r"\s*(?:export\s+)?(\w+)=(.*?)\s*$", line)
        inside = bool(lines) and lines[-1].endswith("\\")
        if set_here and not inside and not line.rstrip().endswith("\\") and _is_variable(set_here[1], text):
            known[set_here[1]] = _known(set_here[2].split(" #")[0].strip().strip("\"'"), known)
        else:
            lines.append(_known(line, known))
    return "\n".join(lines).replace("\\\n", " ")


def _is_variable(name: str, text: str) -> bool:
    return name.isupper() or bool(re.search(rf"\$\{{?{name}\b", text))


def _known(text: str, known: dict[str, str]) -> str:
    filled = NAME.sub(lambda m: known.get(m[1] or m[3], m[2] if m[2] is not None else m[0]), text)
    filled = re.sub(r"\$\(\((.+?)\)\)", lambda m: "$((" + re.sub(r"[A-Za-z_]\w*", lambda n: known.get(n[0], n[0]), m[1]) + "))", filled)
    return SUM.sub(lambda m: str(sum(prod(int(x) for x in part.split("*")) for part in m[1].split("+"))), filled)
