"""Hyperparameters: a frozen pydantic model made from what stands after ``*``, and its errors in plain words."""

import inspect
import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, create_model, field_validator
from pydantic.fields import FieldInfo

from .errors import SignatureError, nearest, text_of
from .renamed import here_called

RESERVED = frozenset({"use", "coef", "aggregation", "apply", "denominator", "decide"})
"""Keys of a recipe's slot, hence no names of hyperparameters."""


class Strict(BaseModel):
    """What recipe sections and hyperparameters share: frozen, unknown keys forbidden, numbers as people write them but never from bool."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, protected_namespaces=())

    @field_validator("*", mode="before")
    @classmethod
    def _no_lookalikes(cls, value: Any, info: ValidationInfo) -> Any:
        leaves = list(_leaves(cls.model_fields[str(info.field_name)].annotation))
        for part in value if isinstance(value, list | tuple) else (value,):
            if isinstance(part, bool) and (int in leaves or float in leaves) and bool not in leaves:
                raise ValueError(f"{str(part).lower()} is not a number")
            if isinstance(part, str) and "_" in part and str not in leaves and (int in leaves or float in leaves) and _spaced(part):
                raise ValueError(f"{part!r} is not a number; write it without underscores")
            if isinstance(part, str) and part == "None" and type(None) in leaves:
                raise ValueError("'None' is text; write null for no value")
        return value


def _spaced(text: str) -> bool:
    """Return whether a text is a number but for its underscores, which YAML 1.2 does not read as such and Python does."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def params_model(name: str, hyper: Mapping[str, inspect.Parameter], hints: Mapping[str, Any], where: str) -> type[BaseModel]:
    """Make the model of a component's hyperparameters; a default that breaks its own bounds raises ``SignatureError``."""
    fields: dict[str, Any] = {}
    for key, p in hyper.items():
        if key.startswith("_"):  # pydantic would make it private and never look at it
            raise SignatureError(f"{where}: a hyperparameter cannot be called {key!r}; its name must not begin with an underscore.")
        if key in RESERVED or hasattr(BaseModel, key):
            raise SignatureError(
                f"{where}: a hyperparameter cannot be called {key!r}, which has a meaning of its own; choose another name."
            )
        if key not in hints and p.default in (p.empty, None):
            raise SignatureError(f"{where}: the hyperparameter {key!r} needs a type, as in `{key}: float`.")
        fields[key] = (hints.get(key, type(p.default)), ... if p.default is p.empty else p.default)
    try:
        made = create_model(f"{name.replace('-', '_')}_params", __base__=Strict, **fields)
    except Exception as error:  # pydantic raises its own and Python's errors for a type it cannot use
        raise SignatureError(f"{where}: the hyperparameters cannot be checked: {text_of(error)}") from error
    for key, message in faults_of(made, {}):
        if hyper[key.partition(".")[0]].default is not inspect.Parameter.empty:
            raise SignatureError(f"{where}: the default of {key!r} breaks its own rule: {message}.")
    return made


def faults_of(model: type[BaseModel], values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return ``(dotted key, sentence)`` for everything in ``values`` that ``model`` refuses."""
    try:
        model.model_validate(values)
    except ValidationError as error:
        found: dict[str, list[str]] = {}
        for key, sentence in (_plain(e, model) for e in error.errors()):
            found.setdefault(key, []).append(sentence)  # each branch of a union complains for itself
        return [(key, "; ".join(sentences)) for key, sentences in found.items()]
    return []


def bounds_of(model: type[BaseModel]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield ``(name, type, bounds, default, description)`` of each hyperparameter, in words, for people."""
    hints = {key: hint for base in reversed(model.__mro__) for key, hint in inspect.get_annotations(base).items()}
    for key, info in model.model_fields.items():
        marks = [m for part in (info.metadata, *_metadata(info.annotation)) for m in part]
        limits = [f"{sign} {getattr(m, attr):g}" for m in marks for attr, sign in _SIGNS if getattr(m, attr, None) is not None]
        default = "required" if info.is_required() else _written(info.default)
        yield (
            key,
            _type_name(info.annotation),
            " and ".join(dict.fromkeys(limits)),
            default,
            _described(hints.get(key), info),
        )


def boundless(model: type[BaseModel]) -> Iterator[str]:
    """Yield the numbers that lie between no bounds and do not say ``Field(allow_inf_nan=False)`` either: that any number makes sense."""
    for name, kind, bounds, _, _ in bounds_of(model):
        info = model.model_fields[name]
        marks = [m for part in (info.metadata, *_metadata(info.annotation)) for m in part]
        if re.search(r"\b(number|integer)", kind) and not bounds and not any(getattr(m, "allow_inf_nan", None) is False for m in marks):
            yield name


def inclusive(model: type[BaseModel]) -> Iterator[tuple[str, int | float]]:
    """Yield each number that is a bound of a hyperparameter and may be taken itself; 2^53 only says that an integer is exact."""
    for name, info in model.model_fields.items():
        whole = float not in _leaves(info.annotation)
        marks = [m for part in (info.metadata, *_metadata(info.annotation)) for m in part]
        found = [getattr(m, attr) for m in marks for attr in ("ge", "le") if getattr(m, attr, None) is not None]
        yield from ((name, int(x) if whole else float(x)) for x in dict.fromkeys(found) if abs(x) < 2**53)


def _written(value: Any) -> str:
    return {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)


_SIGNS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))
_BRANCH = re.compile(r"(function-|constrained-|literal\[|list\[|tuple\[|dict\[)|(int|float|str|bool|none)$")
"""What pydantic calls a branch of a union; such names are no keys."""
_TYPES = {float: "number", int: "integer", bool: "true or false", str: "text", type(None): "null"}


def _leaves(hint: Any) -> Iterator[Any]:
    args = get_args(hint)
    if not args:
        yield hint
    for a in args:
        yield from _leaves(a)


def _metadata(hint: Any) -> Iterator[Any]:
    for a in get_args(hint):
        yield from _metadata(a)
    for m in getattr(hint, "__metadata__", ()):
        yield getattr(m, "metadata", [m])


def _described(hint: Any, info: FieldInfo) -> str:
    """Return what is said of a hyperparameter: by ``Field(description=...)`` or a plain string in its type, the outermost one."""
    found = list(_words(hint)) or [m for m in reversed(info.metadata) if isinstance(m, str)] or list(_words(info.annotation))
    if info.description and info.description not in found:  # that of a Field which stands for the default
        return info.description
    return found[0] if found else ""


def _words(hint: Any) -> Iterator[str]:
    for m in reversed(getattr(hint, "__metadata__", ())):
        said = m if isinstance(m, str) else getattr(m, "description", None)
        if said:
            yield str(said)
    for a in get_args(hint):
        yield from _words(a)


def _type_name(hint: Any) -> str:
    kind, args = get_origin(hint), get_args(hint)
    if kind is Annotated:
        return _type_name(args[0])
    if kind in (Union, UnionType):
        return " or ".join(dict.fromkeys(map(_type_name, args)))
    if kind is Literal:
        return " or ".join("null" if x is None else str(x) for x in args)
    if kind in (list, tuple):
        inner = " or ".join(dict.fromkeys(_type_name(a) for a in args if a is not ...))
        many = f"{inner}s" if inner in ("number", "integer") else inner
        return f"{len(args)} {many}" if kind is tuple and ... not in args else f"list of {many}"
    return _TYPES.get(hint) or str(getattr(hint, "__name__", hint))


def _plain(error: Any, model: type[BaseModel]) -> tuple[str, str]:
    kind, said, ctx = error["type"], error["input"], error.get("ctx", {})
    loc = [str(part) for i, part in enumerate(error["loc"]) if i == 0 or not _BRANCH.match(str(part))]
    if kind in ("value_error", "assertion_error"):
        return ".".join(loc), str(ctx["error"])
    key = ".".join(loc)
    shown = "a mapping" if isinstance(said, Mapping) else _written(said) if said is None or isinstance(said, bool) else repr(said)
    if kind == "extra_forbidden":
        inner = _inner(model, loc[:-1])
        return key, f"unknown key.{here_called(loc[-1], inner.model_fields) or nearest(loc[-1], inner.model_fields) or _known(inner)}"
    if kind == "missing":
        return key, "required, but not given"
    limit = {"greater_than": ">", "greater_than_equal": ">=", "less_than": "<", "less_than_equal": "<="}.get(kind)
    if limit:
        bound = next(v for k, v in ctx.items() if k in ("gt", "ge", "lt", "le"))
        both = next((limits for name, _, limits, _, _ in bounds_of(model) if name == key and limits), f"{limit} {bound:g}")
        return key, f"{shown} is out of bounds; expected a number {both}"
    wanted = {"float": "a number", "int": "an integer", "bool": "true or false", "string": "text", "finite": "a finite number"}.get(
        kind.partition("_")[0]
    )
    if kind == "literal_error":
        return key, f"{shown} is not one of {ctx['expected']}.{nearest(str(said), [x.strip(chr(39)) for x in _options(ctx['expected'])])}"
    if wanted:
        return key, f"{shown} is not {wanted}"
    return key, f"{error['msg'][:1].lower()}{error['msg'][1:]} (it is {shown})"


def _inner(model: type[BaseModel], path: list[str]) -> type[BaseModel]:
    """Return the model that a path leads to, for the names that are known there."""
    for part in path:
        leaves = _leaves(model.model_fields[part].annotation) if part in model.model_fields else ()
        model = next((x for x in leaves if isinstance(x, type) and issubclass(x, BaseModel)), model)
    return model


def _options(expected: str) -> list[str]:
    return expected.replace(" or ", ", ").split(", ")


def _known(model: type[BaseModel]) -> str:
    names = ", ".join(model.model_fields)
    return f" Known here: {names}." if names else " It takes none."
