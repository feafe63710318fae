"""Where a component stands in a recipe, and what a recipe says of it beside its hyperparameters: one table for every kind."""

from dataclasses import dataclass

from ..registry import Component


@dataclass(frozen=True)
class Key:
    """One key of a slot that is not the component's own."""

    name: str
    may_be: str
    default: str = ""
    """What holds where nothing is said; empty: it must be said."""

    def __str__(self) -> str:
        return f"{self.name}: {self.may_be}{f' (default: {self.default})' if self.default else ''}"


_MEAN = Key("aggregation", "an aggregation", "the recipe's")
_FREE = Key("coef", "a number or a coefficient", "1")
_SAID = Key("coef", "a number or a coefficient")
_APPLY = Key("apply", "loss | reward", "loss")
_DENOMINATOR = Key("denominator", "kept | original")
_DECIDE = Key("decide", "loss | measure", "loss; with denominator: kept it must be measure")

KEYS: dict[str, tuple[str, tuple[Key, ...]]] = {
    "policy_loss": ("policy_loss", (_FREE, _MEAN)),
    "value_loss": ("value_loss", (_FREE, _MEAN)),
    "auxiliary_loss": ("auxiliary", (_SAID, _MEAN)),
    "kl": ("kl", (_SAID, _APPLY, Key("aggregation", "an aggregation, in the loss only", "the recipe's"))),
    "advantage": ("advantage", ()),
    "aggregation": ("aggregation, of the recipe or of a term", ()),
    "correction": ("correction", (_DENOMINATOR, _DECIDE)),
    "reward": ("reward", ()),
    "filter": ("filter", ()),
    "coefficient": ("coef of a term", ()),
    "task": ("task", ()),
    "tracker": ("trackers", ()),
}
"""For each kind its section and the keys that the section has of its own."""


def section_of(component: Component) -> str:
    """Return where a recipe names a component; empty: nowhere."""
    return "entropy" if (component.kind.name, component.name) == ("auxiliary_loss", "entropy") else KEYS[component.kind.name][0]


def keys_of(component: Component) -> list[Key]:
    """Return the keys that a recipe may, or must, add: of a correction only those that it can have a use for."""
    live = {"log_prob", "entropy"} & set(component.columns)
    useless = {_DENOMINATOR: not component.drops, _DECIDE: not live}
    return [key for key in KEYS[component.kind.name][1] if not useless.get(key, False)]


def must_be_said(component: Component) -> list[str]:
    """Return the keys without which a recipe that uses the component is refused."""
    return [key.name for key in keys_of(component) if not key.default]


def in_a_recipe(component: Component) -> str:
    """Return all of this in one line."""
    section, keys = section_of(component), keys_of(component)
    needs, may = (", ".join(str(k) for k in keys if bool(k.default) is free) for free in (False, True))
    said = f", which also needs {needs}" if needs else ""
    return (
        f"under {section}{said}" + (f"{';' if needs else ', which'} may {'' if needs else 'also '}say {may}" if may else "")
        if section
        else ""
    )


def written(value: object) -> str:
    """Return a value as a recipe would say it, on one line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {written(v)}' for k, v in value.items())}}}"
    return str(value) or "''"
