"""The recipe as JSON Schema (draft 2020-12), for editors: every section, every component's name and hyperparameters, bounds and meanings."""

import json
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel

from ..registry import KINDS, Catalog, Component, bounds_of
from .build import CHOICES
from .hinting import KIND_OF, SECTIONS, TERMS, section_of_kind

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
MANY = ("reward", "filter", "advantage", "correction", "kl", "auxiliary", "trackers")
"""Sections that may be a list."""
_NEEDS_COEF = ("kl", "auxiliary_loss")
_DOORS = [{"type": "string", "pattern": r"^[\w.]+:\w+$"}, {"type": "string", "pattern": r"^[^/\s]+/[^/\s]+$"}]
"""An import path, or a vendor's name; what they take is known to nobody before they are looked up."""
_ABOUT = {
    "base": "the recipe that this one builds on: a bundled name, or a file beside this one",
    "plugins": "modules, or .py files beside the recipe, whose components join",
    "old_log_prob": "recorded: the batch brings it; current: log_prob itself, detached",
    "empty": "sequences without tokens: drop them from means, or count them",
    "approximate": "micro-batch: let a rule over the whole step look at each part alone",
    "compile": "run all terms of a micro-batch as one compiled graph",
    "aggregation": "how the loss of tokens becomes one number; any term may carry its own",
    "coef": "how much the term counts: a number or a coefficient",
    "apply": "loss: a term of the loss; reward: taken from the reward of each token",
    "denominator": "what the mean is over once tokens were dropped: what was kept, or the original tokens",
    "decide": "loss: inside each loss; measure: in a pass of its own before the step",
}


def recipe_schema(catalog: Catalog, training: Mapping[str, type[BaseModel]]) -> Schema:
    """Return the schema of a whole recipe; ``training`` are the models of the sections that a trainer reads."""
    book = _Book(catalog)
    properties: Schema = {
        "base": {"type": "string", "description": _ABOUT["base"]},
        "plugins": {"type": ["array", "null"], "items": {"type": "string"}, "description": _ABOUT["plugins"]},
        "compile": {"type": "boolean", "default": False, "description": _ABOUT["compile"]},
        **{key: {"enum": [*allowed, None], "description": _ABOUT[key]} for key, allowed in CHOICES.items()},
    }
    for section in (*SECTIONS, "task", "trackers"):
        if section not in properties:
            properties[section] = book.section(section)
    properties |= {section: _model(model) for section, model in training.items()}
    slots = [s for s in properties if s in KIND_OF and s != "entropy"]
    without: Schema = {s: {"$ref": f"#/$defs/{'weighed' if KIND_OF[s] in _NEEDS_COEF else 'said'}"} for s in slots}
    without["entropy"] = {"type": ["object", "number"], "if": {"type": "object"}, "then": {"required": ["coef"]}}
    sections = {key: properties[key] for key in ("base", *SECTIONS, "task", "trackers", *training)}
    return {
        "$schema": DIALECT,
        "title": "A recipe of lossary",
        "type": "object",
        "properties": sections,
        "additionalProperties": False,
        "anyOf": [{"required": [key]} for key in ("policy_loss", "auxiliary", "value_loss", "base")],
        "if": {"not": {"required": ["base"]}},  # on a base, a mapping without 'use' changes what stands there, and null takes it out
        "then": {"properties": without},
        "$defs": {**_said("said", ["use"]), **_said("weighed", ["use", "coef"]), **book.definitions},
    }


def component_schema(component: Component, catalog: Catalog) -> Schema:
    """Return the schema of one component as a section names it: a mapping with ``use``."""
    book = _Book(catalog, ("aggregation", "coefficient"))
    made = {"$schema": DIALECT, "title": f"{component.kind.name} {component.name}", **book.component(component)}
    made["required"] = sorted({"use", *made.get("required", ()), *(["coef"] if component.kind.name in _NEEDS_COEF else [])})
    for _ in range(3):  # a term names an aggregation and a coefficient, whose definitions name their components
        asked = set(_references(made))
        made["$defs"] = {name: found for name, found in book.definitions.items() if name in asked}
    return made


def _said(name: str, required: list[str]) -> Schema:
    mapping = {"if": {"type": "object"}, "then": {"required": required}}
    return {
        name: {
            "type": ["string", "object", "array"] if required == ["use"] else ["object", "array"],
            "if": {"type": "array"},
            "then": {"items": {"$ref": f"#/$defs/{name}"}},
            "else": mapping,
        }
    }


def _references(schema: Any) -> Iterable[str]:
    if isinstance(schema, Mapping):
        if "$ref" in schema:
            yield str(schema["$ref"]).removeprefix("#/$defs/")
        for inner in schema.values():
            yield from _references(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _references(inner)


class _Book:
    """The definitions of every kind and component."""

    def __init__(self, catalog: Catalog, kinds: Iterable[str] = tuple(KINDS)) -> None:
        self.catalog = catalog
        self.definitions: Schema = {}
        for kind in kinds:
            components = sorted((c for c in catalog if c.kind.name == kind), key=lambda c: c.name)
            self.definitions |= {f"{kind}.{c.name}": self.component(c) for c in components}
            self.definitions[kind] = self._slot(kind, components)
        self.definitions["coef"] = {
            "description": _ABOUT["coef"],
            "type": ["number", "object"],
            "if": {"type": "object"},
            "then": {"allOf": [{"$ref": "#/$defs/coefficient"}, {"required": ["use"]}]},
        }

    def section(self, section: str) -> Schema:
        """Return what may stand under a section."""
        if section == "entropy":
            inner = self.component(self.catalog.get("auxiliary_loss", "entropy"))
            inner["properties"].pop("use")
            return {**inner, "type": ["object", "number", "null"]}
        kind = KIND_OF[section]
        slot: Schema = {"$ref": f"#/$defs/{kind}"}
        if section in MANY:
            slot = {"if": {"type": "array"}, "then": {"minItems": 1, "items": slot}, "else": slot}
        return {"description": _ABOUT.get(section, f"{section}: {KINDS[kind].gives}"), **slot}

    def _slot(self, kind: str, components: list[Component]) -> Schema:
        bare = [] if kind in (*_NEEDS_COEF, "coefficient") else [c for c in components if not _required(c)]
        mapping: Schema = {
            "properties": {
                "use": {"anyOf": [{"enum": [n for c in components for n in _names(c)]}, *_DOORS], "description": KINDS[kind].gives}
            },
            "allOf": [
                {
                    "if": {"type": "object", "properties": {"use": {"enum": _names(c)}}, "required": ["use"]},
                    "then": {"$ref": f"#/$defs/{kind}.{c.name}"},
                }
                for c in components
            ],
        }
        name = {"anyOf": [{"enum": [n for c in bare for n in _names(c)]}, *_DOORS]}
        return {
            "type": ["string", "object", "null"] if bare else ["object", "null"],
            **({"if": {"type": "string"}, "then": name, "else": mapping} if bare else mapping),
        }

    def component(self, c: Component) -> Schema:
        """Return the mapping that names a component: its hyperparameters, and the keys of its section."""
        inner = _model(c.params)
        about = " ".join(filter(None, (c.summary.replace("``", "`"), c.paper and f"({c.paper})")))
        properties = {"use": {"enum": _names(c), "description": about}, **inner.get("properties", {}), **_own(c)}
        made: Schema = {"description": about, "type": "object", "properties": properties, "additionalProperties": False}
        if required := _required(c):
            made["required"] = required
        if c.kind.name == "kl":
            made |= {
                "if": {"properties": {"apply": {"const": "reward"}}, "required": ["apply"]},
                "then": {"properties": {"aggregation": False}},
            }
        return made


def _own(c: Component) -> Schema:
    """Return the keys of a component's section."""
    own: Schema = {}
    if section_of_kind(c.kind.name) in TERMS:
        own = {"coef": {"$ref": "#/$defs/coef"}, "aggregation": {"$ref": "#/$defs/aggregation", "description": _ABOUT["aggregation"]}}
    if c.kind.name == "kl":
        own["apply"] = {"enum": ["loss", "reward"], "default": "loss", "description": _ABOUT["apply"]}
    if c.kind.name == "correction":
        own |= {"denominator": {"enum": ["kept", "original"], "description": _ABOUT["denominator"]}} if c.drops else {}
        if {"log_prob", "entropy", "old_log_prob"} & set(c.columns):
            own["decide"] = {"enum": ["loss", "measure"], "description": _ABOUT["decide"]}
    return own


def _required(c: Component) -> list[str]:
    dropping = ["denominator"] if c.kind.name == "correction" and c.drops else []
    return [name for name, info in c.params.model_fields.items() if info.is_required()] + dropping


def _names(c: Component) -> list[str]:
    """Return every spelling of a component's name and aliases."""
    return sorted({n for name in (c.name, *c.aliases) for n in (name, name.replace("-", "_"))}, key=lambda n: (n != c.name, n))


def _model(model: type[BaseModel]) -> Schema:
    """Return a pydantic model's own schema, with what the registry knows of each field's meaning and without its titles."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a default that JSON cannot say
            made = model.model_json_schema()
        json.dumps(made, allow_nan=False)
    except Exception:  # a stranger's type may have no schema: then only the names are known
        made = {"type": "object", "properties": {name: {} for name in model.model_fields}, "additionalProperties": False}
    made = dict(_untitled(made, made.get("$defs", {})))
    made.pop("description", None)
    made.pop("required", None)
    for name, _, _, _, meaning in bounds_of(model):
        if meaning and isinstance(field := made.get("properties", {}).get(name), dict):
            made["properties"][name] = {"description": meaning, **{k: v for k, v in field.items() if k != "description"}}
    return made


def _untitled(schema: Any, definitions: Mapping[str, Any], deep: int = 0) -> Any:
    """Return a schema without titles, its references written out."""
    if isinstance(schema, list):
        return [_untitled(x, definitions, deep) for x in schema]
    if not isinstance(schema, Mapping):
        return schema
    if "$ref" in schema:
        if deep > 10:  # a model that holds itself
            return {}
        found = definitions.get(str(schema["$ref"]).rpartition("/")[2], {})
        return _untitled({**found, **{k: v for k, v in schema.items() if k != "$ref"}}, definitions, deep + 1)
    return {
        key: {name: _untitled(x, definitions, deep) for name, x in value.items()}
        if key == "properties"
        else _untitled(value, definitions, deep)
        for key, value in schema.items()
        if key not in ("$defs",) and not (key == "title" and isinstance(value, str))
    }
