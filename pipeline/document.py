"""YAML in, values with their places out: every key and value knows its file, line and column."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml
from yaml.reader import ReaderError

from ..registry import Fault, Place, clipped

_YAML = "tag:yaml.org,2002:"
_PLAIN_TAGS = (f"{_YAML}map", f"{_YAML}seq")
Path_ = tuple[str | int, ...]
LONGEST = 100_000
"""Characters of a recipe; reading takes about 15 seconds for a million."""
_LIMIT = 20_000
_DEEPEST = 50


@dataclass
class Document:
    """Nested dicts, lists and scalars, the place of each, and what was wrong with the text."""

    source: str
    origin: str = "file"
    values: dict[str, Any] = field(default_factory=dict)
    places: dict[Path_, Place] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    unread: set[Path_] = field(default_factory=set)
    """Values that could not be read and stand as None: nothing more is said of them."""

    def place(self, path: Path_) -> Place:
        """Return where a value was written, or the nearest thing around it."""
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, Place(self.source, origin=self.origin))

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


_RESOLVER = _Core("")


def read_yaml(text: str, source: str, origin: str = "file") -> Document:
    """Parse one YAML document; whatever is wrong with it stands in ``faults``."""
    document = Document(source, origin)
    if len(text) > LONGEST:
        document.faults.append(
            Fault("", Place(source, origin=origin), f"{len(text)} characters; a recipe has at most {LONGEST}, for it is written by hand")
        )
        return document
    builder = _Builder(document)
    node = _composed(text, builder)
    if node is None:
        return document
    value = builder.build(node, (), frozenset())
    if isinstance(value, dict):
        document.values = value
    elif not document.faults:
        document.fault((), f"a recipe is a mapping of sections; this is {said(value)}")
    return document


def _composed(text: str, builder: "_Builder") -> yaml.Node | None:
    """Return the tree of a text, or None: nothing is in it, or what is wrong with it was noted."""
    document = builder.document
    where = Place(document.source, origin=document.origin)
    try:
        return yaml.compose(text, Loader=_Core)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place, why = builder.place(mark) if mark else where, f"no YAML: {error.problem or error.context}"
    except ReaderError as error:
        before = text[: error.position]
        place = builder.placed(before.count("\n"), len(before) - before.rfind("\n") - 1)
        why = f"no YAML: the character {text[error.position]!r} is not allowed"
    except RecursionError:
        place, why = where, "nested too deeply to be read"
    except (ValueError, OverflowError) as error:  # PyYAML's own, for escapes and directives beyond what Python holds
        place, why = where, f"no YAML: {error}"
    document.faults.append(Fault("", place, why))
    return None


def from_values(values: Mapping[Any, Any], source: str) -> Document:
    """Take in a recipe that was written in Python: containers are copied, everything else stays the object that it is."""
    document = Document(source, "python")

    def taken(value: Any, path: Path_) -> Any:
        if isinstance(value, Mapping):
            for key in (key for key in value if not isinstance(key, str)):
                document.fault(path, f"the key {key!r} is no text")
            return {key: taken(x, (*path, key)) for key, x in value.items() if isinstance(key, str)}
        return [taken(x, (*path, i)) for i, x in enumerate(value)] if isinstance(value, (list, tuple)) else value

    document.values = taken(values, ())
    return document


def part_of(document: Document, path: Path_) -> Document:
    """Return what stands at a path, a mapping, as a document of its own whose values keep their places."""
    value = document.values
    for key in path:
        value = value[key]  # type: ignore[index]
    places = {p[len(path) :]: place for p, place in document.places.items() if p[: len(path)] == path}
    return replace(Document(document.source, document.origin, value), places=places)


def read_value(text: str, place: Place) -> Document:
    """Read one value that is said outside a file, at a character of a line; ``values[""]`` is it, and its parts have places of their own.

    Text that begins with a bracket or a quotation mark is YAML. Any other is a plain scalar as a whole: no comment ends it, and no
    anchor, alias or tag begins it.
    """
    document = Document(place.source, place.origin)
    builder = _Builder(document, place)
    plain = text.strip()
    if not plain.startswith(("{", "[", "'", '"')):
        kind = _RESOLVER.resolve(yaml.ScalarNode, plain, (True, False))  # type: ignore[no-untyped-call]
        document.values[""] = builder.scalar(yaml.ScalarNode(kind, plain), ())
    elif (node := _composed(text, builder)) is not None:
        if isinstance(node, yaml.MappingNode) and not node.flow_style:
            document.faults.append(Fault("", place, "a mapping stands in braces, as in {use: k3, coef: 0.1}"))
        elif text[node.end_mark.column :].strip():
            document.faults.append(Fault("", builder.place(node.end_mark), "what stands after the value would be lost"))
        document.values[""] = builder.build(node, (), frozenset())
    return document


def scalar(text: str) -> Any:
    """Return what a value on the command line means, by the same rules as in a file."""
    document = read_value(text, Place("value"))
    return text if document.faults else document.values[""]


def steps(value: Any, dotted: str) -> Path_:
    """Return a dotted key of a value as a path: a number counts only in a list."""
    path: Path_ = ()
    for part in filter(None, dotted.split(".")):
        if isinstance(value, list):
            index = int(part) if part.isdecimal() else -1
            value = value[index] if 0 <= index < len(value) else None
            path = (*path, index if index >= 0 else part)
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
            path = (*path, part)
    return path


class _Builder:
    """Turns nodes into values; PyYAML's own constructor would drop duplicate keys and all places."""

    def __init__(self, document: Document, start: Place | None = None) -> None:
        self.document, self.built = document, 0
        self.start = start
        """Where a text of one line begins that is no file."""

    def place(self, mark: Any) -> Place:
        """Return where a mark of the reader's is."""
        return self.placed(mark.line, mark.column)

    def placed(self, line: int, column: int) -> Place:
        """Return the place of a line and a column that are counted from 0."""
        if self.start is not None:
            return replace(self.start, column=max(self.start.column, 1) + column)
        return Place(self.document.source, line + 1, column + 1, self.document.origin)

    def build(self, node: yaml.Node, path: Path_, around: frozenset[int]) -> Any:
        self.built += 1
        self.document.places.setdefault(path, self.place(node.start_mark))
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
        return self.scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path_, around: frozenset[int]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            place = self.place(key_node.start_mark)
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str) or key == "<<":
                self.document.faults.append(
                    Fault(".".join(map(str, path)), place, "a key must be a plain word; merge keys (<<) are not read")
                )
                continue
            if key in made:
                line = self.document.places[(*path, key)].line
                first = f"; first on line {line}" if line else ""
                self.document.faults.append(Fault(".".join(map(str, (*path, key))), place, f"the key {key!r} stands here again{first}"))
                continue
            self.document.places[(*path, key)] = place
            made[key] = self.build(value_node, (*path, key), around)
        return made

    def scalar(self, node: yaml.Node, path: Path_) -> Any:
        """Return what a scalar means."""
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


def said(value: Any) -> str:
    """Return what a value is, in words."""
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    return "nothing" if value is None else clipped(repr(value))
