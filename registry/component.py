"""A component: a pure function whose signature is its contract."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints, overload

from pydantic import BaseModel

from .claims import checked_claims, checked_deviations
from .errors import SignatureError, listing, nearest, worded
from .fields import FIELDS, Level
from .kinds import KINDS, Kind
from .naming import check_callable, checked_names
from .params import params_model
from .rules import Rule

F = TypeVar("F", bound=Callable[..., Any])
MARK = "__lossary__"
SCOPES = ("token", "sequence", "group", "step")


@dataclass(frozen=True)
class Input:
    """One column that a component asks for by the name of a parameter."""

    name: str
    level: Level | None
    """The level asked for; None: the vocabulary's own."""
    optional: bool


@dataclass(frozen=True)
class Component:
    """A named function, the columns it reads and the hyperparameters it takes."""

    kind: Kind
    name: str
    function: Callable[..., Any]
    inputs: tuple[Input, ...]
    params: type[BaseModel]
    returns: Level | None
    """The level of the returned tensor; None: it returns several columns by name."""
    place: str
    aliases: tuple[str, ...] = ()
    paper: str = ""
    scope: str = "sequence"
    suits: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
    """``{hyperparameter: rule}``: what a recipe must keep to."""
    claims: tuple[str, ...] = ()
    deviates: Mapping[str, str] = field(default_factory=dict)
    """``{check of the conformance kit: why it does not hold}``."""
    compat: Mapping[str, str] = field(default_factory=dict)
    """``{framework: how it calls this, and which settings reproduce it}``."""
    init: Callable[..., Mapping[str, Any]] | None = None
    weighs: bool = True
    """Of a correction: its annotation promises a weight."""
    drops: bool = True
    """Of a correction: its annotation allows tokens to go."""
    distribution: str = ""

    @property
    def summary(self) -> str:
        """The first line of the docstring."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    @property
    def gives(self) -> str:
        """What it returns, in words; of a correction only what its annotation promises."""
        if self.kind.name != "correction" or self.weighs is self.drops:
            return self.kind.gives
        return "the weight of each token" if self.weighs else "whether each token stays"

    @property
    def doc(self) -> str:
        """The whole docstring, unindented."""
        return inspect.getdoc(self.function) or ""

    @property
    def stateful(self) -> bool:
        """Whether it names ``state`` and returns the next one."""
        return any(i.name == "state" for i in self.inputs)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names before ``*``."""
        return tuple(i.name for i in self.inputs)


def component_of(function: Callable[..., Any]) -> Component | None:
    """Return the component that a decorator attached to this very function, or None: ``functools.wraps`` copies the mark, not the claim."""
    found = getattr(function, MARK, None)
    return found if isinstance(found, Component) and found.function is function else None


class Decorator:
    """``@policy_loss`` or ``@policy_loss(paper=...)``: marks a function and hands the same function back.

    It enters nothing anywhere. ``name`` defaults to the function's name with hyphens. ``aliases`` are names that other frameworks
    use. ``scope`` says what a token's result depends on (``"token"``, ``"sequence"``, ``"group"``, ``"step"``): micro-batches are
    cut accordingly. ``suits`` names settings that it is meant for, as ``{"aggregation": "seq-mean-token-mean"}`` or
    ``{"clip_ratio_high": "<= 0.05"}``; others give a warning when a recipe is composed. ``requires`` holds rules of
    the same form that are an error to break, as ``{"lower": "<= upper"}``. ``claims`` are tested by the conformance
    kit (``registry.claims.CLAIMS`` are all there are); ``deviates`` says for a check of the kit why it does not hold, as
    ``{"finite-at-extremes": "the reason"}``. ``compat`` says for a framework how it calls this and which settings reproduce it. ``params`` replaces the model made from the keyword-only parameters, for rules across fields. ``init`` gives the first state
    of a component that names ``state``. A signature that its kind does not allow raises ``SignatureError``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = KINDS[kind]

    @overload
    def __call__(self, function: F, /) -> F: ...
    @overload
    def __call__(
        self,
        /,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        paper: str = "",
        scope: str = "sequence",
        suits: Mapping[str, str] | None = None,
        requires: Mapping[str, str] | None = None,
        claims: Iterable[str] = (),
        deviates: Mapping[str, str] | None = None,
        compat: Mapping[str, str] | None = None,
        params: type[BaseModel] | None = None,
        init: Callable[..., Mapping[str, Any]] | None = None,
    ) -> Callable[[F], F]: ...
    def __call__(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        aliases: tuple[str, ...] = (),
        paper: str = "",
        scope: str = "sequence",
        suits: Mapping[str, str] | None = None,
        requires: Mapping[str, str] | None = None,
        claims: Iterable[str] = (),
        deviates: Mapping[str, str] | None = None,
        compat: Mapping[str, str] | None = None,
        params: type[BaseModel] | None = None,
        init: Callable[..., Mapping[str, Any]] | None = None,
    ) -> F | Callable[[F], F]:
        """Mark ``function``, or return what will mark one."""

        def mark(function: F) -> F:
            made = describe(
                function,
                self.kind,
                name,
                aliases,
                paper,
                scope,
                suits or {},
                requires or {},
                claims,
                compat or {},
                params,
                init,
                deviates,
            )
            if made.name == "<lambda>":
                raise SignatureError(f"{made.place}: a lambda was decorated, which has no name; write a def, or say name=.")
            try:
                setattr(function, MARK, made)
            except AttributeError as error:
                raise SignatureError(f"{made.place}: {made.name!r} cannot be marked: decorate a plain function ({error}).") from error
            return function

        return mark if function is None else mark(function)


policy_loss = Decorator("policy_loss")
value_loss = Decorator("value_loss")
auxiliary_loss = Decorator("auxiliary_loss")
kl_estimator = Decorator("kl")
advantage_estimator = Decorator("advantage")
aggregation = Decorator("aggregation")
correction = Decorator("correction")
reward_term = Decorator("reward")
sequence_filter = Decorator("filter")
coefficient = Decorator("coefficient")
task = Decorator("task")
tracker = Decorator("tracker")


def describe(
    function: Callable[..., Any],
    kind: Kind,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
    paper: str = "",
    scope: str = "sequence",
    suits: Mapping[str, str] | None = None,
    requires: Mapping[str, str] | None = None,
    claims: Iterable[str] = (),
    compat: Mapping[str, str] | None = None,
    params: type[BaseModel] | None = None,
    init: Callable[..., Mapping[str, Any]] | None = None,
    deviates: Mapping[str, str] | None = None,
) -> Component:
    """Read a function's signature into a ``Component``; also how an undecorated callable becomes one."""
    called = str(name or getattr(function, "__name__", type(function).__name__)).replace("_", "-")
    place = _place(function)
    where = f"{place}: {kind.name} {called!r}"
    named = checked_names(name, aliases, where)
    _check_scope(where, scope)
    check_callable(function, kind.name, where)
    hints, signature = _read(function, where)
    inputs, hyper = [], {}
    for p in signature.parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SignatureError(f"{where}: *{p.name} is no contract; name each column before * and each hyperparameter after it.")
        if p.kind is p.KEYWORD_ONLY:
            hyper[p.name] = p
        else:
            inputs.append(_input(p, hints.get(p.name), kind, where))
    made = Component(
        kind=kind,
        name=called,
        function=function,
        inputs=tuple(inputs),
        params=params or params_model(called, hyper, hints, where),
        returns=_returns(hints.get("return"), kind, where),
        place=place,
        aliases=named,
        paper=paper,
        scope=scope,
        suits=dict(suits or {}),
        requires=dict(requires or {}),
        claims=checked_claims(claims, kind.name, where),
        deviates=checked_deviations(deviates or {}, where),
        compat=dict(compat or {}),
        init=init,
        weighs=_promises(hints.get("return"), 0),
        drops=_promises(hints.get("return"), 1),
    )
    _check_words(made, where)
    _check_rules(made, where)
    if made.stateful and init is None:
        raise SignatureError(f"{where} names 'state' and must therefore say init=, a function that gives the first state.")
    if init is not None and not made.stateful:
        raise SignatureError(f"{where} says init= but does not name 'state' before *, so its state would never be seen.")
    if params is not None and set(params.model_fields) != set(hyper):
        raise SignatureError(f"{where}: params={params.__name__} has {listing(params.model_fields)}, the signature {listing(hyper)}.")
    return made


def _check_scope(where: str, scope: str) -> None:
    if scope not in SCOPES:
        raise SignatureError(f"{where}: scope is {scope!r}; it must be one of {listing(SCOPES)}.{nearest(scope, SCOPES)}")


def _read(function: Callable[..., Any], where: str) -> tuple[dict[str, Any], inspect.Signature]:
    plain = function.func if isinstance(function, partial) else function
    target = plain if inspect.isroutine(plain) else getattr(plain, "__call__", plain)  # noqa: B004
    try:
        return get_type_hints(target, include_extras=True), inspect.signature(function)
    except Exception as error:  # a quoted annotation may hold anything
        raise SignatureError(f"{where}: the signature cannot be read: {worded(error)}.") from error


def _place(function: Callable[..., Any]) -> str:
    function = function.func if isinstance(function, partial) else function
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(getattr(function, "__call__", None), "__code__", None)  # noqa: B004
    return f"{Path(code.co_filename).name}:{code.co_firstlineno}" if code else repr(function)


def _input(p: inspect.Parameter, hint: Any, kind: Kind, where: str) -> Input:
    if not kind.columns:
        raise SignatureError(f"{where}: a {kind.name} reads no columns; put {p.name!r} after *.")
    if p.default not in (p.empty, None):
        raise SignatureError(
            f"{where}: the column {p.name!r} has the default {p.default!r}. What stands before * is a column (default: nothing or None); "
            f"a hyperparameter stands after *."
        )
    if p.name in kind.forbidden:
        raise SignatureError(f"{where}: a {kind.name} must not read {p.name!r}.{_why_forbidden(kind, p.name)}")
    return Input(p.name, _level(hint), p.default is None)


def _why_forbidden(kind: Kind, name: str) -> str:
    if kind.name == "value_loss":
        return " Critic terms cannot see the policy: that keeps its gradient out of the actor."
    if name == "values":
        return " Actor terms cannot see the critic's output: that keeps its gradient out of the critic."
    if name == "state":
        return " It runs once per micro-batch, so a state of its own would depend on the split; a coefficient or an advantage may keep one."
    if name in ("log_prob", "entropy"):
        return " It runs before the update; read 'old_log_prob'."
    return ""


def _level(hint: Any) -> Level | None:
    if isinstance(hint, Level):
        return hint
    for part in (*getattr(hint, "__metadata__", ()), *get_args(hint)):
        if (found := _level(part)) is not None:
            return found
    return None


def _returns(hint: Any, kind: Kind, where: str) -> Level | None:
    if not kind.returns:
        return None
    while get_origin(hint) is tuple and get_args(hint):
        hint = get_args(hint)[0]
    if kind.name == "correction":
        return Level.TOKEN
    outer = get_origin(hint) or hint
    if isinstance(outer, type) and issubclass(outer, Mapping):
        if kind.name != "advantage":
            raise SignatureError(f"{where} returns several columns; only an advantage estimator may.")
        return None
    level = _level(hint) or kind.returns[0]
    if kind.name == "reward" and _level(hint) is None:
        raise SignatureError(
            f"{where} must say whose reward it returns: -> PerSequence (of `rewards`) or -> PerToken (of `token_rewards`)."
        )
    if level not in kind.returns:
        allowed = listing(f"Per{lv.value.title()}" for lv in kind.returns)
        raise SignatureError(f"{where} returns {level.value} values; a {kind.name} returns {allowed}.")
    return level


def _promises(hint: Any, place: int) -> bool:
    """Return whether a correction's annotation says that it gives a weight (place 0) or a choice of tokens (1); silence is yes."""
    pair = get_args(hint) if get_origin(hint) is tuple else ()
    if pair and get_origin(pair[0]) is tuple:
        pair = get_args(pair[0])
    return len(pair) != 2 or pair[place] not in (None, type(None))


def _check_words(component: Component, where: str) -> None:
    words = [i.name for i in component.inputs if i.name in FIELDS and FIELDS[i.name].level is Level.VOCAB]
    if words and (component.scope != "token" or "sequences" in component.columns):
        raise SignatureError(
            f"{where}: it reads {words[0]!r} and is called on chunks of tokens, so its scope is 'token' and it cannot see 'sequences'."
        )


def _check_rules(component: Component, where: str) -> None:
    known = component.params.model_fields
    for trait, rules in (("suits", component.suits), ("requires", component.requires)):
        for name, text in rules.items():
            try:
                rule = Rule.of(text)
            except ValueError as error:
                raise SignatureError(f"{where}: {trait} {name!r}: {error}.") from error
            settings = () if rule is None and trait == "suits" else (name, *(rule.names if rule else ()))
            if wrong := [n for n in settings if n not in known]:
                raise SignatureError(f"{where}: {trait} names {wrong[0]!r}, which is no hyperparameter.{nearest(wrong[0], known)}")
            if rule is None and trait == "requires":
                raise SignatureError(f"{where}: requires {name!r}: {text!r} is no rule; write one as '<= upper'.")


def check_columns(component: Component, known: Any) -> None:
    """Raise ``SignatureError`` for a parameter before ``*`` that is in no vocabulary."""
    for i in component.inputs:
        if i.name not in known:
            raise SignatureError(
                f"{component.place}: {component.kind.name} {component.name!r} asks for the column {i.name!r}, which nobody declared."
                f"{nearest(i.name, known)} A column of your own is declared by column({i.name!r}, level=..., doc=...); "
                f"a hyperparameter stands after *."
            )
