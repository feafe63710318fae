"""Which checks a component must pass."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ..registry import FIELDS, Column, Component, SignatureError, Vocabulary, component_of
from . import claims, device, hyper, numbers, policies, scope, structural
from .check import NUMBERS, Check, Rule
from .settings import choices_of, numbered, settings_of
from .subject import Subject

RULES: tuple[Rule, ...] = (*structural.RULES, *device.RULES, *numbers.RULES, *hyper.RULES, *scope.RULES, *policies.RULES, *claims.RULES)
"""Every check there is, in the order in which they are run."""


def checks_for(
    component: Component | Callable[..., Any],
    *,
    columns: Iterable[Column] = (),
    compile: bool = False,
    examples: int = 3,
    settings: Mapping[str, Any] | None = None,
) -> list[Check]:
    """Return the checks for a component, or for a decorated function, each to be called.

    ``columns`` are declarations of your own that it reads. ``examples`` is how many random inputs each check tries; ``settings`` replaces
    the default hyperparameters, and is needed where a required one has no obvious example. ``compile`` adds the check that
    ``torch.compile`` makes one graph of it, which takes seconds. A function that no decorator marks, hyperparameters that it does not
    take, and a deviation from a check that is not asked of it raise ``SignatureError``.
    """
    found = component if isinstance(component, Component) else component_of(component)
    if found is None:
        raise SignatureError(f"{component!r} carries no lossary decorator; write @policy_loss (or another kind) above it.")
    where = f"{found.place}: {found.kind.name} {found.name!r}"
    fields = Vocabulary().extended((c for c in columns if FIELDS.get(c.name) != c), "checks_for")
    chosen = [r for r in RULES if r.applies(found) and (compile or r.name != "compiles")]
    _check_deviations(found, chosen, where)
    try:
        base = settings_of(found) if settings is None else settings_of(found, {}) | dict(settings)
        told = found.params.model_validate(base if settings is None else {**_required(found), **settings})
    except ValueError as error:
        raise SignatureError(f"{where}: no example of its hyperparameters is known; say settings={{...}}: {error}") from error
    whole = {name: getattr(told, name) for name in found.params.model_fields}
    subjects = tuple(Subject(found, chosen_settings, fields) for chosen_settings in choices_of(found, whole))
    if any(c.name not in fields for c in found.inputs):
        chosen = [r for r in chosen if r.name == "signature"]  # the others could not call it
    return [check for rule in chosen for check in _divided(rule, found, subjects, examples)]


def _check_deviations(component: Component, chosen: list[Rule], where: str) -> None:
    for key in component.deviates:
        name, _, choice = key.partition("@")
        rule = next((r for r in chosen if r.name == name), None)
        if rule is None and name != "compiles":
            raise SignatureError(f"{where} deviates from {name!r}, which is not asked of it.")
        if choice == NUMBERS and rule is not None and not rule.per_number:
            raise SignatureError(f"{where} deviates from {key!r}, but {name!r} is not asked at other numbers.")
        if choice not in ("", NUMBERS) and rule is not None and not (rule.per_choice or rule.per_number):
            raise SignatureError(f"{where} deviates from {key!r}, but {name!r} is asked at the defaults only.")


def _divided(rule: Rule, component: Component, subjects: tuple[Subject, ...], examples: int) -> Iterator[Check]:
    """Yield the check, and one of its own for each choice of a hyperparameter at which it is declared not to hold."""
    apart: list[Subject] = []
    for key, reason in component.deviates.items():
        name, _, choice = key.partition("@")
        if name == rule.name and choice == NUMBERS:
            yield Check(rule, component, subjects[:1], examples, reason, at=NUMBERS)
        elif name == rule.name and choice:
            theirs = tuple(s for s in subjects if choice in (f"{k}={v}" for k, v in s.settings.items()))
            if not theirs and rule.per_number and (other := numbered(component, subjects[0].settings, choice)) is not None:
                yield Check(rule, component, (subjects[0].set(other),), examples, reason, at=choice)
                continue
            if not theirs:
                where = f"{component.place}: {component.kind.name} {component.name!r}"
                raise SignatureError(f"{where} deviates from {name!r} at {choice!r}, which is no choice of its hyperparameters.")
            apart += theirs
            yield Check(rule, component, theirs, examples, reason, at=choice)
    rest = tuple(s for s in subjects if s not in apart)
    if rest:
        yield Check(rule, component, rest, examples, component.deviates.get(rule.name, ""))


def _required(component: Component) -> dict[str, Any]:
    needed = {k for k, f in component.params.model_fields.items() if f.is_required()}
    return {k: v for k, v in settings_of(component).items() if k in needed}
