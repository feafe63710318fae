"""One check: a sentence that is promised, and what tries to break it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..registry import Component
from .case import Case, Long, Seeded
from .settings import varied
from .subject import Ill, Off, Subject

Test = Callable[[Subject, Case], None]
NUMBERS = "other-numbers"
"""What a deviation is declared at that is there when the numbers among the hyperparameters are not the defaults."""
_UNFORESEEN = "a result that the check did not foresee; the error above says of what kind"


class Broken(AssertionError):
    """A component does not keep what it, or its kind, promises."""


class NotExamined(Broken):
    """A promise that could not be looked at, for another one is broken that it rests on."""


@dataclass(frozen=True)
class Rule:
    """What a check looks at, for all components."""

    name: str
    says: str
    """What is promised, in a sentence whose subject is the component."""
    cause: str
    """What is usually wrong where it does not hold."""
    applies: Callable[[Component], bool]
    test: Test
    per_choice: bool = False
    """Must hold for every choice that a hyperparameter offers, not only at the defaults."""
    per_number: bool = False
    """Must hold for other numbers than the defaults too."""
    long: bool = False
    """Is looked at on long sequences as well."""
    cases: int | None = None
    """How many it tries where three examples are asked for, the usual number; None: as many as are. 0: it looks at the component alone."""


class _Crash(Off):
    """The check itself came to no end: neither that the promise holds was seen, nor that it does not."""


@dataclass(frozen=True)
class _Failure:
    off: Off
    subject: Subject
    case: Case | None


@dataclass(frozen=True)
class Check:
    """Call it: it returns, or raises ``Broken`` with the claim, the smallest input found, and the usual cause."""

    rule: Rule
    component: Component
    subjects: tuple[Subject, ...]
    examples: int
    deviation: str = ""
    """Why it is declared not to hold; then it must really not."""
    at: str = ""
    """The choice of a hyperparameter for which that is declared."""
    shrink: bool = True

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.rule.name}@{self.at}" if self.at else self.rule.name

    @property
    def claim(self) -> str:
        """What is promised, in one sentence."""
        return self.rule.says

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Look for an input on which the promise does not hold."""
        failure = self._search()
        if self.deviation and failure is None:
            raise Broken(
                f"{self._who} keeps {self.name!r}, though it declares that it does not ({self.deviation!r}).\n"
                f"  promised     {self.claim}\n"
                f"  usual cause  it was mended: take the declaration out of deviates."
            )
        if failure is not None and isinstance(failure.off, Ill) and self.rule.name != "returns" and self._ill(failure):
            raise NotExamined(f"{self._who}: {self.name!r} cannot be looked at before 'returns' holds.") from failure.off.__cause__
        if failure is not None and (not self.deviation or isinstance(failure.off, _Crash)):
            raise Broken(self._told(failure)) from failure.off.__cause__

    @property
    def _who(self) -> str:
        c = self.component
        return f"{c.kind.name} {c.name!r} ({c.place})"

    def _search(self) -> _Failure | None:
        for subject, source, number in self._attempts():
            case = None if self.rule.cases == 0 else subject.case(source, number)
            try:
                self.rule.test(subject, case)  # type: ignore[arg-type]
            except Off as off:
                return _Failure(off, subject, case)
            except Exception as error:  # one check must not take the others with it
                crash = _Crash("a check that comes to its end", f"{type(error).__name__}: {str(error).strip()}", _UNFORESEEN)
                crash.__cause__ = error
                return _Failure(crash, subject, case)
        return None

    def _ill(self, failure: _Failure) -> bool:
        """Return whether it gives nothing that can be looked at on a plain input either."""
        try:
            for number in range(2):
                failure.subject.run(failure.subject.inputs(failure.subject.case(Seeded(number), number)))
        except Ill:
            return True
        return False

    def _attempts(self) -> Iterator[tuple[Subject, Seeded, int]]:
        """Every case at the defaults; of each other choice, of other numbers and of long sequences one."""
        many = self.examples if self.rule.cases is None else max(1, round(self.rule.cases * self.examples / 3))
        if self.at == NUMBERS:
            yield from ((subject, Seeded(number), 1) for subject in self._moved() for number in range(many))
            return
        first = self.subjects[0]
        yield from ((first, Seeded(number), number) for number in range(many))
        if self.rule.long:
            yield first, Long(1), 1
        if self.rule.per_number and not self.at:
            yield from ((subject, Seeded(many), 1) for subject in self._moved())
        if self.rule.per_choice:
            yield from ((subject, Seeded(2 * i + 1), 2 * i + 1) for i, subject in enumerate(self.subjects[1:]))

    def _moved(self) -> Iterator[Subject]:
        """Yield it with other numbers than the defaults, unless that is a check of its own."""
        if self.at == NUMBERS or f"{self.rule.name}@{NUMBERS}" not in self.component.deviates:
            first = self.subjects[0]
            found = (varied(self.component, first.settings, flip=flip) for flip in (False, True))
            yield from (first.set(settings) for settings in found if settings != first.settings)

    def _told(self, failure: _Failure) -> str:
        note = ""
        if failure.case is not None and self.shrink and not isinstance(failure.off, _Crash):
            from .shrinking import smallest

            found, note = smallest(self.rule.test, failure.subject, failure.case)
            if found is not None:
                failure = _Failure(found[0], failure.subject, found[1])
        off, case = failure.off, failure.off.case or failure.case
        lines = [f"{self._who} breaks {self.name!r}", f"  promised     {self.claim}"]
        if case is not None:
            shape, *columns = case.described(n for n in failure.subject.names if case.optional or not _optional(failure, n))
            lines += [f"  input        {shape}", *(f"               {line}" for line in columns)]
        if told := _settings(failure.subject.settings):
            lines.append(f"  settings     {told}")
        lines += [f"  expected     {off.expected}", f"  found        {off.found}", f"  usual cause  {off.cause or self.rule.cause}"]
        if note:
            lines.append(f"  note         {note}")
        return "\n".join(lines)


def _optional(failure: _Failure, name: str) -> bool:
    return any(i.name == name and i.optional for i in failure.subject.component.inputs)


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())
