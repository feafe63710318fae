"""Where a key or a name that stands in the wrong section belongs."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from ..registry import KINDS, Catalog, Component, LossaryError, clipped, listing, nearest
from ..registry.renamed import here_called

SECTIONS = (
    "plugins", "old_log_prob", "empty", "approximate", "compile", "aggregation", "reward", "filter", "advantage", "correction", "policy_loss", "kl",
    "entropy", "value_loss", "auxiliary",
)  # fmt: skip
"""What the pipeline itself reads."""
TRAINING = {
    "task": ("use",),
    "trackers": ("use",),
    "model": (
        "d_model", "layers", "heads", "tied", "dtype", "path", "gguf", "wheel", "chat", "template", "train_embeddings", "lora_rank", "lora_alpha",
    ),
    "critic": ("trunk", "detach"),
    "reference": ("adapters_off", "param_offload"),
    "warm_up": ("steps", "batch", "lr", "ramp"),
    "rollout": ("prompts", "samples_per_prompt", "temperature", "top_k", "top_p", "backend", "staleness", "bypass"),
    "train": (
        "steps", "epochs", "minibatches", "max_tokens", "lr", "critic_lr", "weight_decay", "betas", "grad_clip", "seed", "threads", "checkpoint_every",
        "freeze_actor", "freeze_critic", "parallel", "max_skipped",
    ),
    "evaluate": ("every", "items"),
    "diagnose": ("every",),
}  # fmt: skip
"""What it leaves to a trainer, and the keys that the bundled one reads there (a test compares them)."""
ALL = (*SECTIONS, *TRAINING)
KIND_OF = {"entropy": "auxiliary_loss", "auxiliary": "auxiliary_loss", "trackers": "tracker"} | {
    s: s for s in (*SECTIONS, "task") if s in KINDS
}
"""The kind of component that a section names."""
TERMS = ("policy_loss", "kl", "entropy", "value_loss", "auxiliary")
OWN = {"coef": TERMS, "aggregation": TERMS, "apply": ("kl",), "denominator": ("correction",), "decide": ("correction",)}
"""Keys of a slot that are no hyperparameters, and the sections that have them."""


def a(kind: str) -> str:
    """Return a word with its article."""
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def section_of_kind(kind: str) -> str:
    """Return the section under which components of a kind are named."""
    return {"auxiliary_loss": "auxiliary", "coefficient": "coef", "tracker": "trackers"}.get(kind, kind)


def no_training_key(message: str, key: str, section: str) -> str:
    """Return the same of a section that is left to the trainer."""
    homes = [s for s, keys in TRAINING.items() if _plain(key) in keys and s != section]
    near = [s for s in TRAINING if _plain(key) in TRAINING[s] and s == section]
    return message if near or not homes else f"unknown key: {key!r} is a key of {listing(homes)}, not of {section}."


class Hints:
    """What may be said of a name in the wrong place, given what a recipe holds and which components there are."""

    def __init__(self, values: Mapping[str, Any], catalog: Catalog) -> None:
        self.values, self.catalog = values, catalog

    def no_section(self, key: str) -> str:
        """Say that there is no section of this name, and where it may have been meant to stand."""
        if key == "base":
            return "a base is named in the recipe itself; it cannot be set from outside."
        told = f"there is no section {clipped(key)!r}."
        if _plain(key) in ALL:
            return told + nearest(key, ALL)
        if homes := self._homes(_plain(key), "", ""):
            return f"{told} It is a key of {listing(homes)}."
        if kinds := [k for k in KINDS if key.replace("_", "-") in self._names[k]]:
            return f"{told} {key!r} is {a(kinds[0])}: write {section_of_kind(kinds[0])}: {key}."
        return told + (nearest(key, (*ALL, "base")) or f" Sections are {listing(ALL)}.")

    def no_key(self, message: str, key: str, section: str, component: Component) -> str:
        """Return what is said of an unknown key: the section that it belongs to, if it is exactly a key of another, else ``message``."""
        word, known = _plain(key), component.params.model_fields
        if word in known or here_called(key, known):
            return message
        meant = nearest(key, [k for k in (*OWN, "use") if k == "use" or section in OWN[k]])
        if homes := self._homes(word, section, component.kind.name):
            return f"unknown key: {key!r} is a key of {listing(homes)}, not of {section}.{meant}"
        if word in ALL:
            return f"unknown key: {key!r} is a section of its own, not a key of {section}.{meant}"
        return f"unknown key.{meant}" if meant and "Did you mean" not in message else message

    def wrong_section(self, use: str, kind: str) -> str | None:
        """Say that a name is a component, but of another kind; None: it is not."""
        bare = use.replace("_", "-").rpartition("/")[2]
        others = [k for k in KINDS if k != kind and bare in self._names[k]]
        if not others or bare in self._names[kind]:
            return None
        where = listing(repr(section_of_kind(k)) for k in others)
        return f"{use!r} is {listing(map(a, others))}, not {a(kind)}: it stands under {where}.{nearest(bare, self._names[kind])}"

    def knows(self, use: str, kind: str) -> bool:
        """Say whether somebody registered this name, whoever it was."""
        return use.replace("_", "-").rpartition("/")[2] in self._names[kind]

    def _homes(self, word: str, section: str, kind: str) -> list[str]:
        """Return the sections that have a key: those of this recipe before those that it could have."""
        if word in OWN and section not in OWN[word]:
            return [s for s in OWN[word] if s in self.values] or list(OWN[word])
        if used := [s for s, keys in self._used.items() if s != section and word in keys]:
            return used
        if homes := [s for s, keys in TRAINING.items() if word in keys and s != section]:
            return homes
        kinds = self._kinds.get(word, set())
        return [] if kind in kinds else sorted(map(section_of_kind, kinds))

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        return {kind: self.catalog.names(kind) for kind in KINDS}

    @cached_property
    def _kinds(self) -> dict[str, set[str]]:
        """The kinds whose components have a hyperparameter of a name."""
        found: dict[str, set[str]] = {}
        for component in self.catalog:
            for key in component.params.model_fields:
                found.setdefault(key, set()).add(component.kind.name)
        return found

    @cached_property
    def _used(self) -> dict[str, set[str]]:
        """The hyperparameters of what each section of the recipe names."""
        found: dict[str, set[str]] = {}
        for section, kind in KIND_OF.items():
            raw = self.values.get(section)
            for slot in raw if isinstance(raw, list) else [raw]:
                use = slot.get("use", section if section == "entropy" else None) if isinstance(slot, Mapping) else slot
                if isinstance(use, str) and self.knows(use, kind):
                    with suppress(LossaryError):  # two bring it: which of them is meant is a fault of its own
                        found.setdefault(section, set()).update(self.catalog.get(kind, use).params.model_fields)
        return found


def _plain(key: str) -> str:
    return key.replace("-", "_").lower()
