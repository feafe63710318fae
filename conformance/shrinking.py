"""The smallest input that still breaks a promise, found by hypothesis."""

from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .case import Case, drawn
from .check import Test
from .subject import Off, Subject

EXTRA = "pip install 'lossary[conformance]'"
BUDGET = 400
"""How many inputs are tried."""


def smallest(test: Test, subject: Subject, case: Case) -> tuple[tuple[Off, Case] | None, str]:
    """Return how and on what a test fails on the smallest input found, or None; and what must be said of it."""
    if find_spec("hypothesis") is None:
        return None, f"the input is the first that failed, not the smallest: {EXTRA} makes it small."
    hypothesis, st = import_module("hypothesis"), import_module("hypothesis.strategies")
    found: list[tuple[Off, Case]] = []
    tried = 0

    def fails(candidate: Case) -> bool:
        nonlocal tried
        tried += 1
        if tried > BUDGET:
            return False
        try:
            test(subject, candidate)
        except Off as off:
            found.append((off, candidate))
            return True
        except Exception:  # of an input that makes no sense
            return False
        return False

    settings = hypothesis.settings(
        max_examples=BUDGET,
        database=None,
        derandomize=True,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
    )
    with suppress(Exception):  # nothing smaller was found, or the search itself gave up: what is known already stands
        hypothesis.find(_cases(st, subject, optional=case.optional), fails, settings=settings)
    return (min(found, key=lambda f: _size(f[1])) if found else None), ""


def _size(case: Case) -> tuple[int, int, float]:
    far = sum(float(x.double().abs().nan_to_num(0).sum()) for x in case.columns.values())
    return len(case.lengths) + case.tokens, len(set(case.groups)), far


def _cases(st: Any, subject: Subject, *, optional: bool) -> Any:
    @st.composite  # type: ignore[untyped-decorator]
    def cases(draw: Any) -> Case:
        return drawn(_Drawn(draw, st), subject.names, subject.fields, optional=optional)

    return cases()


class _Drawn:
    """Numbers that hypothesis chooses and makes simpler: hundredths, the nearer to nothing the better."""

    def __init__(self, draw: Any, st: Any) -> None:
        self.draw, self.st = draw, st

    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return up to five sequences."""
        st = self.st
        pairs = self.draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=5))
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)

    def reals(self, n: int, low: float, high: float) -> list[float]:
        """Return numbers."""
        whole = self.st.integers(round(low * 100), round(high * 100))
        return [x / 100 for x in self.draw(self.st.lists(whole, min_size=n, max_size=n))]

    def integers(self, n: int, low: int, high: int) -> list[int]:
        """Return integers."""
        found: list[int] = self.draw(self.st.lists(self.st.integers(low, high), min_size=n, max_size=n))
        return found
