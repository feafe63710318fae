"""Which picture suits which component."""

from collections.abc import Callable

from ...registry import Component
from . import actor, credit, judges, weights
from .picture import Picture
from .tiny import NoPicture

_PAINTERS: dict[str, Callable[[Component], Picture]] = {
    "policy_loss": actor.policy,
    "auxiliary_loss": actor.auxiliary,
    "kl": judges.kl,
    "value_loss": judges.value,
    "correction": judges.correction,
    "advantage": credit.advantage,
    "reward": credit.reward,
    "filter": credit.kept,
    "aggregation": weights.aggregation,
    "coefficient": weights.coefficient,
}


def portrait_of(component: Component) -> Picture | None:
    """Return the picture of a component, or None where none makes sense: a task, a constant, a column that no tiny batch has."""
    painter = _PAINTERS.get(component.kind.name)
    try:
        return painter(component) if painter else None
    except NoPicture:
        return None
