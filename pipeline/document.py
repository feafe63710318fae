"""YAML in, values with their places out: every key and value knows its file, line and column."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.reader import ReaderError

from ..registry import Fault, Place

_YAML = "tag:yaml.org,2002:"
_PLAIN_TAGS = (f"{_YAML}map", f"{_YAML}seq")
Path_ = tuple[str | int, ...]
_LIMIT = 20_000
_DEEPEST = 50


@dataclass
class Document:
    """Nested dicts, lists and scalars, the place of each, and what was wrong with the text."""

    source: str
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path_, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unread: set[Path_] = field(default_factory=set)
    """Values that could not be read and stand as None: nothing more is said of them."""

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
    _Core.add_implicit_resolver(f"{_YAML}{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


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
    except ReaderError as error:
        before = text[: error.position]
        place = Place(source, before.count("\n") + 1, len(before) - before.rfind("\n"))
        document.faults.append(Fault("", place, f"no YAML: the character {text[error.position]!r} is not allowed"))
        return document
    except RecursionError:
        document.faults.append(Fault("", Place(source), "nested too deeply to be read"))
        return document
    except (ValueError, OverflowError) as error:  # PyYAML's own, for escapes and directives beyond what Python holds
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


def from_values(values: Mapping[Any, Any], source: str) -> Document:
    """Take in a recipe that was written in Python: containers are copied, everything else stays the object that it is."""
    document = Document(source)

    def taken(value: Any, path: Path_) -> Any:
        if isinstance(value, Mapping):
            for key in (key for key in value if not isinstance(key, str)):
                document.fault(path, f"the key {key!r} is no text")
            return {key: taken(x, (*path, key)) for key, x in value.items() if isinstance(key, str)}
        return [taken(x, (*path, i)) for i, x in enumerate(value)] if isinstance(value, (list, tuple)) else value

    document.values = taken(values, ())
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
            return self._unread(path, "an alias that contains itself")
        if self.built > _LIMIT:
            return self._unread(path, f"more than {_LIMIT} values; aliases multiply") if self.built == _LIMIT + 1 else None
        if len(path) > _DEEPEST:
            return self._unread(path[:1], f"nested more than {_DEEPEST} deep")
        if not isinstance(node, yaml.ScalarNode) and not node.tag.startswith(_PLAIN_TAGS):
            return self._unread(path, f"the tag {node.tag!r} is not read")
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
                self.document.faults.append(
                    Fault(".".join(map(str, path)), place, "a key must be a plain word; merge keys (<<) are not read")
                )
                continue
            if key in made:
                first = self.document.places[(*path, key)].line
                self.document.faults.append(
                    Fault(".".join(map(str, (*path, key))), place, f"the key {key!r} stands here again; first on line {first}")
                )
                continue
            self.document.places[(*path, key)] = place
            made[key] = self.build(value_node, (*path, key), around)
        return made

    def _scalar(self, node: yaml.Node, path: Path_) -> Any:
        tag, text = node.tag.removeprefix(_YAML), str(node.value)
        try:
            if tag == "null":
                return None
            if tag == "bool":
                return {"true": True, "false": False}[text.lower()]
            if tag == "int":
                return int(text, 0) if text[:2] in ("0x", "0o") else int(text)
            if tag == "float":
                return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
        except (KeyError, ValueError):  # an explicit tag, or more digits than Python reads
            return self._unread(path, f"{text[:40]!r} is no {tag}")
        return text if tag == "str" else self._unread(path, f"the tag {node.tag!r} is not read")

    def _unread(self, path: Path_, why: str) -> None:
        if path not in self.document.unread:
            self.document.fault(path, why)
        self.document.unread.add(path)


def override(document: Document, assignment: str) -> None:
    """Apply ``a.b=value`` to a document; a bare component name becomes a mapping where a key of it is set."""
    path_text, equals, text = assignment.partition("=")
    source = f"override {assignment!r}"
    parts: Path_ = tuple(int(p) if p.isdecimal() and len(p) < 9 else p for p in path_text.strip().split("."))
    if not equals or "" in parts or "\n" in assignment:
        document.faults.append(Fault("", Place(source), "an override reads a.b=value"))
        return
    if broken := _unreadable(path_text, text, source):
        document.faults.append(broken)
        return
    here: Any = document.values
    for i, part in enumerate(parts[:-1]):
        inner = _step(here, part)
        if inner is None:
            inner = {}
            document.places.setdefault(parts[: i + 1], Place(source))
        elif isinstance(inner, str) or callable(inner):
            inner = {"use": inner}
        elif not isinstance(inner, (dict, list)):
            document.faults.append(
                Fault(path_text, Place(source), f"{'.'.join(map(str, parts[: i + 1]))} is {_said(inner)} and has no parts")
            )
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


def _unreadable(path: str, text: str, source: str) -> Fault | None:
    """Return what is wrong with a value that is meant as a mapping, a list or a quoted text: it must not pass for plain text."""
    if not text.lstrip().startswith(("{", "[", "'", '"')):
        return None
    first = next(iter(read_yaml(f"value: {text}", "value").faults), None)
    if first is None:
        return None
    at = min(len(text), max(first.place.column - len("value: "), 1)) + len(path) + 1 if first.place.line == 1 else len(path) + 1 + len(text)
    return Fault(path.strip(), Place(source), f"{first.message} (character {at})")


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
