"""Values that are said outside a recipe: ``a.b=value`` on the command line, ``LOSSARY_SET__A__B`` in the environment."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..registry import Fault, Place, clipped
from .document import Document, Path_, from_values, read_value, said

PREFIX = "LOSSARY_SET__"


def override(document: Document, assignment: str) -> None:
    """Apply ``a.b=value``: only what the path names is changed, and null takes a whole section out."""
    path, equals, text = assignment.partition("=")
    place = Place(f"override {clipped(assignment)!r}", origin="override")
    if not equals or "\n" in assignment or not all(part.strip() for part in path.split(".")):
        document.faults.append(Fault("", place, "an override reads a.b=value"))
        return
    starts = [sum(len(p) + 1 for p in path.split(".")[:i]) + len(p) - len(p.lstrip()) + 1 for i, p in enumerate(path.split("."))]
    places = [Place(place.source, 0, start, place.origin) for start in starts]
    _assign(document, path.split("."), places, text, Place(place.source, 0, len(path) + 2, place.origin))


def override_by_value(document: Document, path: str, value: Any) -> None:
    """Apply what Python says as ``{"a.b": value}``: the value is taken as it is."""
    place = Place(f"override {path!r}", origin="override")
    parts = path.split(".")
    if not all(part.strip() for part in parts):
        document.faults.append(Fault("", place, "the path of an override reads a.b"))
        return
    taken = from_values({"": value}, place.source)
    document.faults += [Fault(path, place, f.message) for f in taken.faults]
    _put(document, parts, [place] * len(parts), taken.values[""], {})


def override_from(document: Document, path: str, written: Document, at: Path_) -> None:
    """Apply the value that stands at ``at`` in another document: a fault in it is then told with the place where it is written."""
    value: Any = written.values
    for key in at:
        value = value[key]
    parts, place = path.split("."), written.place(at)
    inner = {p[len(at) :]: there for p, there in written.places.items() if p[: len(at)] == at and p != at}
    taken = from_values({"": value}, written.source)
    _put(document, parts, [place] * len(parts), taken.values[""], inner)


def set_by_environment(document: Document, environment: Mapping[str, str]) -> None:
    """Apply every ``LOSSARY_SET__A__B=value``: two underscores part the path, capitals count as small letters."""
    found: dict[tuple[str, ...], str] = {}
    for name in sorted(n for n in environment if n.upper().startswith(PREFIX[:-2])):
        place = Place(f"${name}", origin="environment")
        parts = tuple(name[len(PREFIX) :].lower().split("__"))
        if not name.startswith(PREFIX) or not all(parts):
            document.faults.append(Fault("", place, f"a setting in the environment is called {PREFIX}SECTION__KEY, as {PREFIX}KL__COEF"))
        elif "\n" in environment[name]:
            document.faults.append(Fault(".".join(parts), place, "a value stands on one line"))
        elif parts in found:
            document.faults.append(Fault(".".join(parts), place, f"${found[parts]} says the same key"))
        else:
            found[parts] = name
    for parts, name in sorted(found.items(), key=lambda item: (len(item[0]), item[0])):  # the whole before its parts
        place = Place(f"${name}", origin="environment")
        _assign(document, parts, [place] * len(parts), environment[name], place)


def _assign(document: Document, parts: Iterable[str], places: list[Place], text: str, start: Place) -> None:
    parts = [part.strip() for part in parts]
    if not text.strip():
        document.faults.append(Fault(".".join(parts), places[-1], "no value is given; write null for none, '' for empty text"))
        return
    read = read_value(text, start)
    if read.faults:
        document.faults += [Fault(".".join(filter(None, (*parts, f.path))), f.place, f.message) for f in read.faults]
        return
    _put(document, parts, places, read.values[""], {path: place for path, place in read.places.items() if path})


def _put(document: Document, parts: Iterable[str], places: list[Place], value: Any, inner: Mapping[Path_, Place]) -> None:
    """Store a value at a path; a bare component name on the way becomes a mapping."""
    words = [part.strip() for part in parts]
    here: Any = document.values
    path: Path_ = ()
    key: Any
    for word, place in zip(words, places, strict=True):
        key = _entry(here, word)
        if key is None:
            entries = f"it has {len(here)}, counted from 0" if here else "it is empty"
            document.faults.append(Fault(".".join(words), place, f"the list has no entry {word!r}; {entries}"))
            return
        path = (*path, key)
        if len(path) == len(words):
            break
        there = here[key] if isinstance(here, list) else here.get(key)
        if there is None:
            document.places[path] = place
            there = {}
        elif (isinstance(there, str) or callable(there)) and key != "use":
            document.places.setdefault((*path, "use"), document.place(path))
            there = {"use": there}
        elif not isinstance(there, (dict, list)):
            document.faults.append(Fault(".".join(words), place, f"{'.'.join(map(str, path))} is {said(there)} and has no parts"))
            return
        here[key] = there
        here = there
    for known in [p for p in document.places if p[: len(path)] == path]:
        del document.places[known]
    here[path[-1]] = value
    document.places[path] = places[-1]
    document.places.update({(*path, *below): place for below, place in inner.items()})
    document.unread = {p for p in document.unread if p[: len(path)] != path}


def _entry(here: Any, word: str) -> str | int | None:
    """Return the key of a mapping or the index of a list that a word of a path means; None: the list has no such entry."""
    if not isinstance(here, list):
        return word
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 9 and int(word) < len(here) else None
