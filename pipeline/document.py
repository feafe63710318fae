"""YAML in, values with their places out: every key and value knows its file, line and column."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from ..registry import Fault, Place

Path_ = tuple[str | int, ...]
_LIMIT = 20_000


@dataclass
class Document:
    """Nested dicts, lists and scalars, the place of each, and what was wrong with the text."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path_, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def place(self, path: Path_) -> Place:
        """Return where a value was written, or the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(self.source))

    def fault(self, path: Path_, message: str) -> None:
        """Note that something is wrong at a path."""
        self.faults.append(Fault(".".join(map(str, path)), self.place(path), message))


class _Core(yaml.SafeLoader):
    """YAML 1.2's scalars: ``1e-6`` is a number, ``on``, ``off``, ``yes`` and ``no`` are text, ``010`` is ten."""


_Core.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
):
    _Core.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def read_yaml(text: str, source: str) -> Document:
    """Parse one YAML document; whatever is wrong with it stands in ``faults``."""
    document = Document(source)
    try:
        node = yaml.compose(text, Loader=_Core)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(source, mark.line + 1, mark.column + 1) if mark else Place(source)
        document.faults.append(Fault("", place, f"no YAML: {error.problem or error.context}"))
        return document
    except yaml.YAMLError as error:
        document.faults.append(Fault("", Place(source), f"no YAML: {error}"))
        return document
    if node is None:
        return document
    value = _Builder(document).build(node, (), frozenset())
    if isinstance(value, dict):
        document.values = value
    elif not document.faults:
        document.fault((), f"a recipe is a mapping of sections; this is {_said(value)}")
    return document


def scalar(text: str) -> Any:
    """Return what a value on the command line means, by the same rules as in a file."""
    document = read_yaml(f"value: {text}", "value")
    return text if document.faults else document.values.get("value")


class _Builder:
    """Turns nodes into values; PyYAML's own constructor would drop duplicate keys and all places."""

    def __init__(self, document: Document) -> None:
        self.document, self.built = document, 0

    def build(self, node: yaml.Node, path: Path_, around: frozenset[int]) -> Any:
        self.built += 1
        self.document.places.setdefault(path, Place(self.document.source, node.start_mark.line + 1, node.start_mark.column + 1))
        if id(node) in around:
            self.document.fault(path, "an alias that contains itself")
            return None
        if self.built > _LIMIT:
            if self.built == _LIMIT + 1:
                self.document.fault(path, f"more than {_LIMIT} values; aliases multiply")
            return None
        around = around | {id(node)}
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, around)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, i), around) for i, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_, around: frozenset[int]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = Place(self.document.source, key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key == "<<":
                self.document.faults.append(Fault(".".join(map(str, path)), place, "a key must be a plain word; merge keys (<<) are not read"))
                continue
            if key in made:
                first = self.document.places[(*path, key)].line
                self.document.faults.append(Fault(".".join(map(str, (*path, key))), place, f"the key {key!r} stands here again; first on line {first}"))
                continue
            self.document.places[(*path, key)] = place
            made[key] = self.build(value_node, (*path, key), around)
        return made

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        tag, text = node.tag.rpartition(":")[2], str(node.value)
        if tag == "null":
            return None
        if tag == "bool":
            return text.lower() == "true"
        if tag == "int":
            return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
        if tag == "float":
            return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        if tag != "str" and not node.tag.startswith("tag:yaml.org,2002:str"):
            self.document.fault(path, f"the tag {node.tag!r} is not read")
        return text


def override(document: Document, assignment: str) -> None:
    """Apply ``a.b=value`` to a document; a bare component name becomes a mapping where a key of it is set."""
    path_text, equals, text = assignment.partition("=")
    source = f"override {assignment!r}"
    parts: Path_ = tuple(int(p) if p.isdigit() else p for p in path_text.strip().split("."))
    if not equals or "" in parts:
        document.faults.append(Fault("", Place(source), "an override reads a.b=value"))
        return
    here: Any = document.values
    for i, part in enumerate(parts[:-1]):
        inner = _step(here, part)
        if inner is None:
            inner = {}
        elif isinstance(inner, str) or callable(inner):
            inner = {"use": inner}
        elif not isinstance(inner, (dict, list)):
            document.faults.append(Fault(path_text, Place(source), f"{'.'.join(map(str, parts[: i + 1]))} is {_said(inner)} and has no parts"))
            return
        if not _store(here, part, inner):
            document.faults.append(Fault(path_text, Place(source), f"the list has no entry {part!r}"))
            return
        here = inner
    if not _store(here, parts[-1], scalar(text)):
        document.faults.append(Fault(path_text, Place(source), f"the list has no entry {parts[-1]!r}"))
        return
    for known in [p for p in document.places if p[: len(parts)] == parts]:
        del document.places[known]
    document.places[parts] = Place(source)


def _step(here: Any, part: str | int) -> Any:
    if isinstance(here, list):
        return here[part] if isinstance(part, int) and part < len(here) else None
    return here.get(str(part))


def _store(here: Any, part: str | int, value: Any) -> bool:
    if isinstance(here, list):
        if not isinstance(part, int) or part >= len(here):
            return False
        here[part] = value
    else:
        here[str(part)] = value
    return True


def _said(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return "nothing" if value is None else f"{value!r}"
