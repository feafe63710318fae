"""What every import shares: a framework's keys are taken one by one, and each leaves a row that says what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from ..gate import IntegrationError

MAPPED, APPROXIMATED, DROPPED = "mapped", "approximated", "dropped"
MISSING: Any = object()


@dataclass(frozen=True)
class Row:
    """One key of theirs and its fate."""

    key: str
    value: Any
    fate: str
    here: str
    """The path in the recipe, or nothing."""
    reason: str = ""


@dataclass
class Reading:
    """A configuration while it is read. What is never asked for is a row too, in the end: nothing goes without a word."""

    values: dict[str, Any]
    defaults: Mapping[str, Any]
    rows: list[Row] = field(default_factory=list)
    recipe: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def get(self, key: str) -> Any:
        """Return what was said of a key, or the framework's own default; a key counts as read from now on.

        A value that only a shell could give raises ``IntegrationError``.
        """
        self.taken.add(key)
        value = self.values.get(key, self.defaults.get(key))
        if isinstance(value, str) and "$" in value:
            raise IntegrationError(f"{key}: what the shell puts for {value!r} is not known; write the value.")
        return value

    def told(self, key: str, here: str, *, fate: str = MAPPED, reason: str = "") -> Any:
        """Return a key's value and say where it went; a default that nobody wrote leaves a row only if it is not plainly mapped."""
        value = self.get(key)
        if key in self.values or fate != MAPPED:
            said = reason if key in self.values else f"{reason} (default there)".strip()
            self.rows.append(Row(key, value, fate, here, said))
        return value

    def note(self, key: str, fate: str, here: str, reason: str) -> None:
        """Say what became of a key whose value needs no other handling."""
        self.told(key, here, fate=fate, reason=reason)

    def finish(self, reasons: Mapping[str, str]) -> None:
        """Give every key that nothing asked for its row; ``reasons`` are by the key's beginning. A slip of the pen is no key dropped."""
        for key in self.values:
            if key in self.taken:
                continue
            if key in self.defaults:
                row = Row(key, self.values[key], DROPPED, "", "not used with the other settings")
            elif close := get_close_matches(key, self.defaults, n=1, cutoff=0.9):
                row = Row(key, self.values[key], APPROXIMATED, "", f"not known; was {close[0]} meant?")
            else:
                why = next((r for start, r in reasons.items() if key.startswith(start)), "no setting of the loss by this name is known")
                row = Row(key, self.values[key], DROPPED, "", why)
            self.rows.append(row)


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested mappings as ``{"a.b.c": value}``."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        path = f"{before}{key}"
        if isinstance(value, Mapping):
            out |= flat(value, f"{path}.")
        else:
            out[path] = value
    return out
