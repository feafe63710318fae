"""What a check found: the fault by name, its place, why it matters and what to do; and a list of them, with what was not looked at."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["error", "warning"]
SERIOUS: Severity = "error"


@dataclass(frozen=True)
class Place:
    """Where in a batch or a run: as much of it as is known; all but ``step`` count from 0, ``token`` among the sequence's sampled tokens."""

    column: str | None = None
    sequence: int | None = None
    token: int | None = None
    group: int | None = None
    step: int | None = None
    """Of a run, as its lines count them."""

    def __str__(self) -> str:
        said = [f"column {self.column!r}"] if self.column is not None else []
        parts = (("step", self.step), ("group", self.group), ("sequence", self.sequence), ("token", self.token))
        return ", ".join([*said, *(f"{name} {value}" for name, value in parts if value is not None)]) or "the whole batch"


@dataclass(frozen=True)
class Finding:
    """One fault. ``error``: what is learned is wrong, or nothing is; ``warning``: it may be meant, but seldom is."""

    check: str
    """The check of a batch or the rule of a run that struck."""
    severity: Severity
    place: Place
    found: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity} {self.check} at {self.place}: {self.found}"

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        place = {name: value for name, value in vars(self.place).items() if value is not None}
        return {**{name: value for name, value in vars(self).items() if name != "place"}, "place": place}


@dataclass(frozen=True)
class Inspection:
    """What an inspection came to: findings, worst first, the checks that ran, and why the others did not."""

    findings: tuple[Finding, ...]
    ran: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def serious(self) -> bool:
        """Whether a finding says that what is learned is wrong."""
        return any(f.severity == SERIOUS for f in self.findings)

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        """Return how many findings there are."""
        return len(self.findings)

    def __str__(self) -> str:
        said = [f"{len(self.findings)} findings of {len(self.ran)} checks; {len(self.skipped)} had nothing to look at"]
        return "\n".join([*said, *map(str, self.findings)])
