"""Hyperparameters to try a component with: its defaults, an example where there is none, and each other choice that it offers."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from ..registry import Component
from ..registry.params import inclusive
from ..registry.rules import Rule

SMALL: Mapping[str, Any] = {
    "value": 0.5, "start": 1.0, "end": 0.1, "steps": 4, "kl_coef": 0.1, "target": 0.1, "horizon": 10.0, "divisor": 5.0,
    "loss_scale_factor": 5.0, "max_resp_len": 4, "overlong_buffer_len": 2,
}  # fmt: skip
"""Examples that mean something for a batch of few tokens."""


def settings_of(component: Component, usual: Mapping[str, Any] = SMALL) -> dict[str, Any]:
    """Return a value for every hyperparameter: its default, or what ``usual`` says of its name, or the least that its bounds allow."""
    asked = {k: f for k, f in component.params.model_fields.items() if f.is_required()}
    return _whole(component, {k: usual[k] if k in usual else _example(f.annotation, f.metadata) for k, f in asked.items()})


def choices_of(component: Component, settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the settings, and them with each other choice among named ones or of true and false, where the component allows it."""
    yield dict(settings)
    for name, field in component.params.model_fields.items():
        offered = [x for leaf in _leaves(field.annotation) for x in leaf]
        for value in offered:
            if value == settings[name] or (value is None and settings[name] is None):
                continue
            try:
                yield _whole(component, {**settings, name: value})
            except ValidationError:  # its own rules forbid the pair
                continue


def varied(component: Component, settings: Mapping[str, Any], *, flip: bool = False) -> dict[str, Any]:
    """Return the settings with every number moved, each second one the other way, as far as it suits the component; 0 is off."""
    found = dict(settings)
    numbers = [n for n, v in settings.items() if isinstance(v, int | float) and not isinstance(v, bool) and v]
    for i, name in enumerate(numbers):
        with suppress(ValidationError):
            moved = _whole(component, {**found, name: _like(found[name], 1.2 if (i % 2 == 0) is not flip else 0.85)})
            found = moved if _suits(component, moved) else found
    return found


def numbered(component: Component, settings: Mapping[str, Any], choice: str) -> dict[str, Any] | None:
    """Return the settings with one number replaced, as ``"clip_ratio_c=1.5"`` says it; None: it says no number that is allowed."""
    name, _, text = choice.partition("=")
    with suppress(ValueError):
        number = float(text)
        if name in settings:
            return _whole(component, {**settings, name: number})
    return None


def _suits(component: Component, settings: Mapping[str, Any]) -> bool:
    """Whether all numbers are what the component says it is meant for; a recipe that breaks such a rule is warned."""
    rules = {name: rule for name, text in component.suits.items() if name in settings and (rule := Rule.of(text)) is not None}
    return all(rule.holds(settings[name], settings) for name, rule in rules.items())


def others_of(component: Component, settings: Mapping[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Yield the settings with one of them changed, in every way that is tried: other choices, its bounds, half, twice, one more."""
    value, field = settings[name], component.params.model_fields[name]
    tried: list[Any] = [x for leaf in _leaves(field.annotation) for x in leaf]
    tried += [bound for of, bound in inclusive(component.params) if of == name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        tried += [value + 1, 0.3, *(_like(value, by) for by in (0.5, 2.0, 0.1, 1e-3)), value - 1]
    elif isinstance(value, list | tuple):
        tried += [type(value)(2 * x + 1 for x in value if isinstance(x, int | float))]
    if value is None or isinstance(value, str):
        tried += [0.5, 1, 2, 0.01, [1.0, 2.0]]
    for other in (*tried, None):
        with suppress(ValidationError):
            made = _whole(component, {**settings, name: other})
            if made[name] != value:
                yield made


def _like(value: float, by: float) -> float:
    return max(1, round(value * by)) if isinstance(value, int) else value * by


def _whole(component: Component, said: Mapping[str, Any]) -> dict[str, Any]:
    told = component.params.model_validate(dict(said))
    return {name: getattr(told, name) for name in component.params.model_fields}


def _leaves(hint: Any) -> Iterator[tuple[Any, ...]]:
    if get_origin(hint) is Literal:
        yield get_args(hint)
    elif hint is bool:
        yield (False, True)
    elif get_origin(hint) not in (list, tuple, dict):
        for a in get_args(hint):
            yield from _leaves(a)


def _example(annotation: Any, metadata: list[Any]) -> Any:
    for leaf in _leaves(annotation):
        return leaf[0]
    above = [getattr(m, "gt", getattr(m, "ge", None)) for m in metadata]
    least = max((float(x) for x in above if x is not None), default=0.0)
    below = [getattr(m, "lt", getattr(m, "le", None)) for m in metadata]
    most = min((float(x) for x in below if x is not None), default=float("inf"))
    value = (least + most) / 2 if most < float("inf") else least + 1
    inside = {annotation, *get_args(annotation)}
    return int(value) if int in inside and float not in inside else "" if str in inside and float not in inside else value
