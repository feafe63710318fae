"""What adapters share at the door: which versions of a framework they were tried with, and how refusals read."""

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from packaging.specifiers import SpecifierSet

from ..registry import LossaryError, listing

TRIED: Mapping[str, str] = {"verl": ">=0.9.1,<0.10", "trl": ">=1.16,<1.17", "skyrl": ">=0.3,<0.5"}
"""By framework the versions whose hook points an adapter speaks to."""


class IntegrationError(LossaryError):
    """A framework cannot run this recipe or component, or is of a version that no adapter was written for."""


def require_version(framework: str) -> str:
    """Return the installed version; a framework that is absent or outside ``TRIED`` raises ``IntegrationError``."""
    wanted = TRIED[framework]
    try:
        found = version(framework)
    except PackageNotFoundError:
        raise IntegrationError(f"{framework} is not installed; the adapter wants {framework}{wanted}.") from None
    if not SpecifierSet(wanted).contains(found, prereleases=True):
        raise IntegrationError(f"{framework} {found} is installed; the adapter speaks to {framework}{wanted}.")
    return found


def require_given(who: str, framework: str, needed: Mapping[str, str], given: Iterable[str], hints: Mapping[str, str]) -> None:
    """Raise ``IntegrationError`` for a column that a framework does not hand to ``who``; ``needed`` is ``{column: who asks}``."""
    given = set(given)
    for column, asks in needed.items():
        if column not in given:
            hint = f" {hints[column]}" if column in hints else ""
            raise IntegrationError(f"{who}: {asks} needs the column {column!r}, but {framework} gives only {listing(given)}.{hint}")


def require_untouched(who: str, settings: Any, defaults: Mapping[str, Any]) -> None:
    """Raise ``IntegrationError`` for settings of a framework that say something else than their default and would go unheard."""
    said = [name for name, default in defaults.items() if getattr(settings, name, default) != default]
    if said:
        told = ", ".join(f"{name}={getattr(settings, name)!r}" for name in said)
        raise IntegrationError(
            f"{who}: {told} would have no effect, because the recipe says all of the loss; leave it out, or say it there."
        )
