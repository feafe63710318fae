"""lossary-doubt: objectives for rewards that one cannot fully trust.

A grader (a judge model, votes of several, a test suite with holes) often knows how sure it is. Here that number is a column,
``trust``, and everything that reads it lets a doubtful grade move the policy less.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

import lossary
from lossary.registry import Column

from .alarm import Alarm
from .columns import TRUST
from .doubt_clip import doubt_clip
from .doubtful_judge import doubtful_judge
from .rollback import rollback
from .trusted_baseline import trusted_baseline
from .trusted_mean import trusted_mean

__all__ = ["TRUST", "Alarm", "doubt_clip", "doubtful_judge", "rollback", "trusted_baseline", "trusted_mean"]

lossary_api = 1  # of the hooks that this package is written for
_alarm = Alarm()


@lossary.hookimpl
def lossary_components() -> list[Callable[..., Any]]:
    """Two losses, an advantage, an aggregation, a task."""
    return [doubt_clip, rollback, trusted_baseline, trusted_mean, doubtful_judge]


@lossary.hookimpl
def lossary_fields() -> list[Column]:
    """The column that they read."""
    return [TRUST]


@lossary.hookimpl
def lossary_recipes() -> Mapping[str, str]:
    """``lossary train doubt``."""
    return {"doubt": (files(__name__) / "doubt.yaml").read_text("utf-8")}


@lossary.hookimpl
def lossary_event(event: Mapping[str, Any]) -> None:
    """Watch every run of the bundled trainer for a reward that rises while the held-out accuracy falls."""
    _alarm.hear(event)
