"""Where a key or a name that stands in the wrong section belongs."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..registry import KINDS, Catalog, Component, LossaryError, listing, nearest
from ..registry.renamed import here_called

SECTIONS = (
    "plugins", "old_log_prob", "empty", "approximate", "compile", "aggregation", "reward", "filter", "advantage", "correction", "policy_loss", "kl",
    "entropy", "value_loss", "auxiliary",
)  # fmt: skip
"""What the pipeline itself reads."""
TRAINING = {
    "task": ("use",),
    "model": ("d_model", "layers", "heads", "tied"),
    "warm_up": ("steps", "batch", "lr", "ramp"),
    "rollout": ("prompts", "samples_per_prompt", "temperature", "backend"),
    "train": (
        "steps", "epochs", "minibatches", "max_tokens", "lr", "critic_lr", "weight_decay", "betas", "grad_clip", "seed", "threads", "checkpoint_every",
    ),
    "evaluate": ("every", "items"),
}  # fmt: skip
"""What it leaves to a trainer, and the keys that the bundled one reads there (a test compares them)."""
ALL = (*SECTIONS, *TRAINING)
KIND_OF = {"entropy": "auxiliary_loss", "auxiliary": "auxiliary_loss"} | {s: s for s in (*SECTIONS, "task") if s in KINDS}
"""The kind of component that a section names."""
TERMS = ("policy_loss", "kl", "entropy", "value_loss", "auxiliary")
OWN = {"coef": TERMS, "aggregation": TERMS, "apply": ("kl",), "denominator": ("correction",), "decide": ("correction",)}
"""Keys of a slot that are no hyperparameters, and the sections that have them."""


def a(kind: str) -> str:
    """Return a word with its article."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def section_of_kind(kind: str) -> str:
    """Return the section under which components of a kind are named."""
    return {"auxiliary_loss": "auxiliary", "coefficient": "coef"}.get(kind, kind)


def no_section(key: str, values: Mapping[str, Any], catalog: Catalog) -> str:
    """Say that there is no section of this name, and where it may have been meant to stand."""
    if key == "base":
        return "a base is named in the recipe itself; it cannot be set from outside."
    told = f"there is no section {key!r}."
    if _plain(key) in ALL:
        return told + nearest(key, ALL)
    if homes := _homes(_plain(key), values, catalog, "", ""):
        return f"{told} It is a key of {listing(homes)}."
    if kinds := [k for k in KINDS if key.replace("_", "-") in catalog.names(k)]:
        return f"{told} {key!r} is {a(kinds[0])}: write {section_of_kind(kinds[0])}: {key}."
    return told + (nearest(key, (*ALL, "base")) or f" Sections are {listing(ALL)}.")


def no_key(message: str, key: str, section: str, component: Component | None, values: Mapping[str, Any], catalog: Catalog) -> str:
    """Return what is said of an unknown key: the section that it belongs to, if it is exactly a key of another, else ``message``."""
    word, known = _plain(key), component.params.model_fields if component else ()
    own = [k for k in (*OWN, "use") if k == "use" or section in OWN[k]]
    if word in known or here_called(key, known):
        return message
    meant = nearest(key, own)
    homes = _homes(word, values, catalog, section, component.kind.name if component else "")
    if homes:
        return f"unknown key: {key!r} is a key of {listing(homes)}, not of {section}.{meant}"
    if word in ALL:
        return f"unknown key: {key!r} is a section of its own, not a key of {section}.{meant}"
    return f"unknown key.{meant}" if meant and "Did you mean" not in message else message


def no_training_key(message: str, key: str, section: str) -> str:
    """Return the same of a section that is left to the trainer."""
    homes = [s for s, keys in TRAINING.items() if _plain(key) in keys and s != section]
    near = [s for s in TRAINING if _plain(key) in TRAINING[s] and s == section]
    return message if near or not homes else f"unknown key: {key!r} is a key of {listing(homes)}, not of {section}."


def wrong_section(use: str, kind: str, catalog: Catalog) -> str | None:
    """Say that a name is a component, but of another kind; None: it is not."""
    bare = use.replace("_", "-").rpartition("/")[2]
    others = [k for k in KINDS if k != kind and bare in catalog.names(k)]
    if not others or bare in catalog.names(kind):
        return None
    where = listing(repr(section_of_kind(k)) for k in others)
    return f"{use!r} is {listing(map(a, others))}, not {a(kind)}: it stands under {where}.{nearest(bare, catalog.names(kind))}"


def _homes(word: str, values: Mapping[str, Any], catalog: Catalog, section: str, kind: str) -> list[str]:
    """Return the sections that have a key: those of this recipe before those that it could have."""
    if word in OWN and section not in OWN[word]:
        return [s for s in OWN[word] if s in values] or list(OWN[word])
    used = {s: c for s, c in _used(values, catalog) if s != section and word in c.params.model_fields}
    if used:
        return list(used)
    homes = [s for s, keys in TRAINING.items() if word in keys and s != section]
    if homes:
        return homes
    kinds = {c.kind.name for c in catalog if word in c.params.model_fields}
    return [] if kind in kinds else sorted(map(section_of_kind, kinds))


def _used(values: Mapping[str, Any], catalog: Catalog) -> Iterable[tuple[str, Component]]:
    for section, kind in KIND_OF.items():
        raw = values.get(section)
        for slot in raw if isinstance(raw, list) else [raw]:
            use = slot.get("use", section if section == "entropy" else None) if isinstance(slot, Mapping) else slot
            if isinstance(use, str) and ":" not in use:
                try:
                    yield section, catalog.get(kind, use)
                except LossaryError:
                    continue


def _plain(key: str) -> str:
    return key.replace("-", "_").lower()
