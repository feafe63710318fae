"""Hyperparameters: a model made from what stands after ``*``, and refusals in plain words."""

from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from lossary.registry import KINDS, SignatureError, Strict, bounds_of, faults_of, hyper, policy_loss
from lossary.registry.component import describe

few = settings(max_examples=40, deadline=None)
Tilt = Annotated[float, Field(gt=0, le=5, description="how steep")]


def params(function):
    return describe(function, KINDS["policy_loss"]).params


def sample(
    log_prob,
    *,
    alpha: Tilt = 1.0,
    rounds: int = 3,
    cap: Annotated[float | None, Field(gt=0)] = None,
    inner: Annotated[float, Field(lt=9)] | None = None,
    mode: Literal["mean", "sum"] = "mean",
    auto: float | Literal["auto"] = "auto",
    several: list[float] = [1.0],  # noqa: B006
    quick: bool = False,
    label: str | None = None,
    bare=0.5,
    needed: Annotated[int, Field(ge=1)],
): ...


SAMPLE = params(sample)


def faults(**values):
    return dict(faults_of(SAMPLE, {"needed": 1, **values}))


def test_what_people_write_is_taken():
    made = SAMPLE.model_validate({"needed": 2, "alpha": 1, "cap": "3e-6", "rounds": "4", "several": [1, "2"], "inner": None, "quick": True})
    assert (made.alpha, made.cap, made.rounds, made.several, made.quick, made.bare) == (1.0, 3e-6, 4, [1.0, 2.0], True, 0.5)
    assert isinstance(made.alpha, float)
    with pytest.raises(ValidationError, match="frozen"):
        made.alpha = 2.0


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("alpha", True, "true is not a number"),
        ("rounds", False, "false is not a number"),
        ("several", [1.0, True], "true is not a number"),
        ("cap", "None", "'None' is text; write null for no value"),
        ("label", "None", "'None' is text; write null for no value"),
        ("alpha", None, "null is not a number"),
        ("alpha", 9, "9 is out of bounds; expected a number > 0 and <= 5"),
        ("alpha", 0, "0 is out of bounds; expected a number > 0 and <= 5"),
        ("inner", 9.5, "9.5 is out of bounds; expected a number < 9"),
        ("needed", 0, "0 is out of bounds; expected a number >= 1"),
        ("alpha", "fast", "'fast' is not a number"),
        ("alpha", {"a": 1}, "a mapping is not a number"),
        ("alpha", float("nan"), "nan is not a finite number"),
        ("rounds", 2.5, "2.5 is not an integer"),
        ("quick", "perhaps", "'perhaps' is not true or false"),
        ("label", 3, "3 is not text"),
        ("mode", "meen", "'meen' is not one of 'mean' or 'sum'. Did you mean 'mean'?"),
        ("auto", "atuo", "'atuo' is not a number; 'atuo' is not one of 'auto'. Did you mean 'auto'?"),
        ("several", 3, "input should be a valid list (it is 3)"),
    ],
)
def test_what_is_refused_is_refused_in_a_sentence(key, value, sentence):
    assert faults(**{key: value}) == {key: sentence}


def test_an_entry_of_a_list_is_located():
    assert faults(several=[1, "x"]) == {"several.1": "'x' is not a number"}


def test_all_faults_are_told_at_once():
    found = faults_of(SAMPLE, {"alpha": True, "cap": "None", "rounds": 0.5, "alhpa": 1})
    assert dict(found) == {
        "alpha": "true is not a number",
        "cap": "'None' is text; write null for no value",
        "rounds": "0.5 is not an integer",
        "needed": "required, but not given",
        "alhpa": "unknown key. Did you mean 'alpha'?",
    }


def test_an_unknown_key_far_from_all_others_says_what_is_known():
    def two(log_prob, *, alpha: float = 1.0, beta: float = 1.0): ...

    def none(log_prob): ...

    assert faults_of(params(two), {"zzz": 1}) == [("zzz", "unknown key. Known here: alpha, beta.")]
    assert faults_of(params(none), {"zzz": 1}) == [("zzz", "unknown key. It takes none.")]


def test_an_unknown_key_inside_a_nested_model_is_told_what_is_known_there():
    class Inner(Strict):
        interval: int = 1

    class Outer(Strict):
        depth: Inner | None = None

    assert faults_of(Outer, {"depth": {"intervl": 1}}) == [("depth.intervl", "unknown key. Did you mean 'interval'?")]
    assert faults_of(Outer, {"depth": {"interval": "x"}}) == [("depth.interval", "'x' is not an integer")]
    assert faults_of(Outer, {"depth": {"interval": 2}}) == []


@few
@given(st.floats(min_value=-20, max_value=20), st.floats(min_value=-20, max_value=20))
def test_bounds_hold_for_every_number(alpha, inner):
    right = {key for key, fine in (("alpha", 0 < alpha <= 5), ("inner", inner < 9)) if not fine}
    assert set(faults(alpha=alpha, inner=inner)) == right


def test_bounds_in_words():
    assert list(bounds_of(SAMPLE)) == [
        ("alpha", "number", "> 0 and <= 5", "1.0", "how steep"),
        ("rounds", "integer", "", "3", ""),
        ("cap", "number or null", "> 0", "null", ""),
        ("inner", "number or null", "< 9", "null", ""),
        ("mode", "mean or sum", "", "mean", ""),
        ("auto", "number or auto", "", "auto", ""),
        ("several", "list of numbers", "", "[1.0]", ""),
        ("quick", "true or false", "", "false", ""),
        ("label", "text or null", "", "null", ""),
        ("bare", "number", "", "0.5", ""),
        ("needed", "integer", ">= 1", "required", ""),
    ]


def test_the_description_of_a_nested_annotation_is_found():
    def f(log_prob, *, a: Annotated[float, Field(gt=0, description="deep")] | None = None, b: type = int): ...

    found = {name: (kind, bounds, doc) for name, kind, bounds, _, doc in bounds_of(params(f))}
    assert found == {"a": ("number or null", "> 0", "deep"), "b": ("type", "", "")}


def test_a_plain_string_in_a_type_describes_it_and_changes_nothing_else():
    def f(
        log_prob,
        *,
        a: Annotated[hyper.Positive, "how soft"] = 1.0,
        b: Annotated[float | None, Field(gt=0), "how far; null: never"] = None,
        c: Annotated[float, Field(lt=9), "a branch"] | None = None,
        d: Annotated[Literal["x", "y"], "which"] = "x",
    ): ...

    model = params(f)
    assert list(bounds_of(model)) == [
        ("a", "number", "> 0", "1.0", "how soft"),
        ("b", "number or null", "> 0", "null", "how far; null: never"),
        ("c", "number or null", "< 9", "null", "a branch"),
        ("d", "x or y", "", "x", "which"),
    ]
    assert faults_of(model, {"a": 2, "b": 3, "c": None, "d": "y"}) == []
    assert dict(faults_of(model, {"a": 0, "b": True, "c": 9, "d": "z"})) == {
        "a": "0 is out of bounds; expected a number > 0",
        "b": "true is not a number",
        "c": "9 is out of bounds; expected a number < 9",
        "d": "'z' is not one of 'x' or 'y'.",
    }


@pytest.mark.parametrize(
    "hint",
    [
        Annotated[Tilt, "outer"],
        Annotated[Annotated[float, "inner"], Field(description="outer")],
        Annotated[Annotated[float, "inner"], "outer"],
        Annotated[Annotated[float, Field(description="inner")] | None, "outer"],
        Annotated[Annotated[float, "inner"] | None, Field(gt=0, description="outer")],
        Annotated[tuple[Annotated[float, "inner"], ...], "outer"],
    ],
)
def test_of_several_descriptions_the_outermost_counts(hint):
    def f(log_prob, *, x): ...

    f.__annotations__["x"] = hint
    assert [said for *_, said in bounds_of(params(f))] == ["outer"]


def test_descriptions_of_a_model_of_ones_own():
    class Base(Strict):
        a: Annotated[Tilt, "outer"] = 1.0
        b: Tilt = Field(1.0, description="of the default")
        c: "Annotated[float, 'quoted']" = 1.0

    class Grown(Base):
        b: Annotated[Tilt, "anew"] = 2.0

    assert [said for *_, said in bounds_of(Base)] == ["outer", "of the default", "quoted"]
    assert [said for *_, said in bounds_of(Grown)] == ["outer", "anew", "quoted"]


@pytest.mark.parametrize(
    ("hint", "fine", "wrong"),
    [
        (hyper.ClipRange, [0, 0.2, 999], [-0.1, 1e3]),
        (hyper.ClipBelow, [0, 1], [-0.1, 1.1]),
        (hyper.LogRatioBound, [None, 20, 80], [0, 81]),
        (hyper.Positive, [1e-9], [0, float("inf")]),
        (hyper.NonNegative, [0, 5], [-1e-9]),
        (hyper.Fraction, [0, 1], [1.5]),
        (hyper.Discount, [0.99], [1.01]),
        (hyper.Count, [1], [0, 1.5]),
        (hyper.Epsilon, [0, 1e-8], [-1e-9, float("inf")]),
    ],
)
def test_the_recurring_types_have_the_bounds_that_their_names_promise(hint, fine, wrong):
    def f(log_prob, *, x): ...

    f.__annotations__["x"] = hint
    model = params(f)
    assert [faults_of(model, {"x": v}) for v in fine] == [[]] * len(fine)
    assert all(faults_of(model, {"x": v}) for v in wrong)
    assert any(row[2] for row in bounds_of(model))


# ── signatures that no model can be made of ──────────────────────────────────────────────────────────────────────────


def refused(function):
    with pytest.raises(SignatureError) as caught:
        policy_loss(function)
    text = str(caught.value)
    assert text.startswith(f"test_params.py:{function.__code__.co_firstlineno}: policy_loss {function.__name__!r}: ")
    return text


def test_a_default_that_breaks_its_own_rule():
    def bounds(log_prob, *, alpha: Tilt = -1.0): ...

    def boolean(log_prob, *, needed: int, alpha: float = True): ...

    def choice(log_prob, *, mode: Literal["a"] | float = "b"): ...

    assert "the default of 'alpha' breaks its own rule: -1.0 is out of bounds; expected a number > 0" in refused(bounds)
    assert "the default of 'alpha' breaks its own rule: true is not a number" in refused(boolean)
    assert "the default of 'mode' breaks its own rule" in refused(choice)


@pytest.mark.parametrize("name", ["use", "coef", "aggregation", "apply", "denominator", "copy", "model_fields"])
def test_reserved_names(name):
    scope = {}
    exec(f"def f(log_prob, *, {name}: float = 1.0): ...", scope)
    with pytest.raises(SignatureError, match=f"a hyperparameter cannot be called '{name}'"):
        policy_loss(scope["f"])


def test_a_hyperparameter_needs_a_type():
    def untyped(log_prob, *, alpha): ...

    def nulled(log_prob, *, alpha=None): ...

    assert "the hyperparameter 'alpha' needs a type, as in `alpha: float`" in refused(untyped)
    assert "needs a type" in refused(nulled)


def test_a_type_or_name_that_pydantic_cannot_use():
    class Strange:
        pass

    def strange(log_prob, *, x: Strange): ...

    def hidden(log_prob, *, _x: int = 1): ...

    assert "the hyperparameters cannot be checked" in refused(strange)
    assert "its name must not begin with an underscore" in refused(hidden)


def test_rules_of_a_foreign_model_are_told_as_they_are():
    class Foreign(BaseModel):
        step: Annotated[int, Field(multiple_of=2)] = 2

    assert faults_of(Foreign, {"step": 3}) == [("step", "input should be a multiple of 2 (it is 3)")]
