"""A signature is a contract: what decorators read from it, what they refuse, and that they change nothing else."""

import functools
import re
from collections.abc import Mapping
from typing import Annotated, Any

import pytest
from pydantic import Field
from refusing import refused
from torch import Tensor

import lossary.registry as registry
from lossary.registry import (
    FIELDS,
    KINDS,
    Catalog,
    Column,
    ColumnError,
    Fault,
    Input,
    Level,
    LossaryError,
    PerGroup,
    PerSequence,
    PerToken,
    Place,
    RecipeError,
    Report,
    SignatureError,
    UnknownName,
    Vocab,
    Vocabulary,
    advantage_estimator,
    aggregation,
    auxiliary_loss,
    coefficient,
    column,
    component_of,
    correction,
    kl_estimator,
    listing,
    nearest,
    policy_loss,
    reward_term,
    task,
    tracker,
    value_loss,
)
from lossary.registry.component import describe

HERE = "test_registry.py"


# ── what a decorator does ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_decorator_hands_the_same_function_back_and_enters_nothing_anywhere():
    def plain(log_prob, advantages):
        return -log_prob * advantages

    book = Catalog.load(discover=False)
    assert policy_loss(plain) is plain
    assert policy_loss(paper="x")(plain) is plain
    assert plain(2.0, 3.0) == -6.0
    assert list(book) == list(Catalog.load(discover=False)) == []


def test_everything_a_decorator_is_told_is_kept():
    def start(like):
        return {"mean": like}

    @advantage_estimator(
        name="my_loss", aliases=("low_var", "other"), paper="arXiv:1", scope="group", suits={"aggregation": "token-mean"},
        claims=("shift_invariant",), deviates={"scope": "why"}, init=start,
    )  # fmt: skip
    def f(advantages: PerToken, state: Any, *, alpha: float = 0.5) -> tuple[PerToken, dict[str, Any]]:
        """One line.

        More of it.
        """
        return advantages, state

    made = component_of(f)
    assert made.kind is KINDS["advantage"]
    assert (made.name, made.aliases, made.paper, made.scope) == ("my-loss", ("low-var", "other"), "arXiv:1", "group")
    assert (made.suits, made.claims, made.init) == ({"aggregation": "token-mean"}, ("shift-invariant",), start)
    assert made.deviates == {"scope": "why"}
    assert (made.summary, made.doc) == ("One line.", "One line.\n\nMore of it.")
    assert made.stateful
    assert made.columns == ("advantages", "state")
    assert made.place == f"{HERE}:{f.__code__.co_firstlineno}"
    assert made.params().model_dump() == {"alpha": 0.5}
    assert made.distribution == ""


def test_inputs_levels_and_optionals_come_from_the_signature():
    @auxiliary_loss(scope="token")
    def f(
        log_prob,
        rewards: PerToken,
        advantages: PerSequence | None = None,
        logits: Vocab = None,
        returns: Annotated[PerGroup, "note"] | None = None,
        /,
    ) -> PerGroup: ...

    made = component_of(f)
    assert made.inputs == (
        Input("log_prob", None, False),
        Input("rewards", Level.TOKEN, False),
        Input("advantages", Level.SEQUENCE, True),
        Input("logits", Level.VOCAB, True),
        Input("returns", Level.GROUP, True),
    )
    assert made.returns is Level.GROUP
    assert made.name == "f"


@pytest.mark.parametrize(
    ("hint", "level"),
    [
        (PerToken, Level.TOKEN),
        (PerSequence, Level.SEQUENCE),
        (tuple[PerSequence, Report], Level.SEQUENCE),
        (tuple[PerGroup, Mapping[str, Any]], Level.GROUP),
        (Tensor, Level.TOKEN),
        (None, Level.TOKEN),
    ],
)
def test_the_level_of_the_result_comes_from_the_return_annotation(hint, level):
    def f(log_prob): ...

    f.__annotations__["return"] = hint
    assert component_of(policy_loss(f)).returns is level


def test_an_estimator_may_return_columns_by_name_and_nobody_else():
    @advantage_estimator
    def gae(token_rewards, old_values) -> tuple[dict[str, Tensor], Report]: ...

    @advantage_estimator
    def plain(rewards) -> Mapping[str, Tensor]: ...

    def loss(log_prob) -> dict[str, Tensor]: ...

    assert component_of(gae).returns is None
    assert component_of(plain).returns is None
    assert "returns several columns; only an advantage estimator may" in refused(policy_loss, loss)


@pytest.mark.parametrize(
    ("decorator", "kind"),
    [
        (policy_loss, "policy_loss"), (value_loss, "value_loss"), (auxiliary_loss, "auxiliary_loss"), (kl_estimator, "kl"),
        (advantage_estimator, "advantage"), (aggregation, "aggregation"), (correction, "correction"), (reward_term, "reward"),
        (coefficient, "coefficient"), (task, "task"), (tracker, "tracker"),
    ],
)  # fmt: skip
def test_each_kind_has_its_decorator(decorator, kind):
    @decorator
    def made(*, width: int = 3) -> PerToken: ...

    assert component_of(made).kind is KINDS[kind]
    assert component_of(made).inputs == ()


def test_every_kind_forbids_only_columns_that_exist():
    assert {name for kind in KINDS.values() for name in kind.forbidden} <= set(FIELDS)
    assert all(name == kind.name for name, kind in KINDS.items())


def test_undecorated_callables_are_described_by_the_slot():
    class Tilted:
        def __call__(self, log_prob: PerSequence, *, tau: float = 0.5) -> PerSequence: ...

    def base(log_prob: PerToken, *, tau: Annotated[float, Field(gt=0)], alpha: float = 1.0) -> PerToken: ...

    made = describe(Tilted(), KINDS["policy_loss"])
    assert (made.name, made.returns, made.inputs[0].level) == ("Tilted", Level.SEQUENCE, Level.SEQUENCE)
    assert made.place.startswith(f"{HERE}:")
    bound = describe(functools.partial(base, tau=2.0), KINDS["policy_loss"])
    assert bound.inputs == (Input("log_prob", Level.TOKEN, False),)
    assert bound.params().model_dump() == {"tau": 2.0, "alpha": 1.0}
    assert bound.place == f"{HERE}:{base.__code__.co_firstlineno}"
    nameless = describe(lambda log_prob, advantages: -log_prob * advantages, KINDS["policy_loss"])
    assert (nameless.name, nameless.columns) == ("<lambda>", ("log_prob", "advantages"))


def test_a_wrapper_is_not_taken_for_the_function_that_it_wraps():
    @policy_loss
    def inner(log_prob): ...

    @functools.wraps(inner)
    def outer(log_prob): ...

    assert component_of(inner).function is inner
    assert component_of(outer) is None
    assert component_of(len) is None
    assert describe(outer, KINDS["policy_loss"]).function is outer


# ── what a decorator refuses ─────────────────────────────────────────────────────────────────────────────────────────


# ── the vocabulary ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_column_of_ones_own():
    valid = column("valid", level="sequence", doc="whether it counts", unit="", integer=True)
    assert valid == Column("valid", Level.SEQUENCE, "", "whether it counts", integer=True)
    assert not valid.differentiable
    assert column("x", level="token", doc="", wide=True, nan_means="absent") == Column(
        "x", Level.TOKEN, "", "", wide=True, nan_means="absent"
    )


@pytest.mark.parametrize(
    ("name", "level", "said"),
    [
        ("valid", "group", "level is 'group'; a column lives at 'token' or at 'sequence' level"),
        ("not valid", "token", "must be a Python identifier"),
        ("lambda", "token", "must be a Python identifier"),
        ("rewards", "token", "already in the vocabulary: reward of the whole sequence"),
    ],
)
def test_a_column_that_cannot_be_declared(name, level, said):
    with pytest.raises(SignatureError, match=f"column '{name}'.*{re.escape(said)}"):
        column(name, level=level, doc="")


def test_a_vocabulary_grows_into_a_new_one():
    valid = column("valid", level="sequence", doc="a")
    old = Vocabulary()
    new = old.extended([valid, valid], "here")
    assert "valid" in new
    assert "valid" not in old
    assert new["valid"] is valid
    assert list(new) == [*FIELDS, "valid"]
    with pytest.raises(SignatureError, match="column 'valid' of there is already declared with another meaning"):
        new.extended([column("valid", level="token", doc="a")], "there")
    with pytest.raises(SignatureError, match="column 'valid' is already declared"):
        new.extended([column("valid", level="sequence", doc="b")])


def test_the_vocabulary_is_the_designs():
    differentiable = {name for name, c in FIELDS.items() if c.differentiable}
    assert differentiable == {"log_prob", "entropy", "values", "log_z", "logits", "value_logits"}
    assert FIELDS["rollout_log_prob"].nan_means
    assert {n for n, c in FIELDS.items() if c.level is Level.SPECIAL} == {"sequences", "totals", "state", "step", "measured"}
    assert all(name == c.name and c.doc for name, c in FIELDS.items())


# ── errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_error_made_on_purpose_is_a_lossary_error():
    assert all(issubclass(e, LossaryError) for e in (UnknownName, SignatureError, ColumnError, RecipeError, registry.PluginError))


def test_faults_are_told_in_the_order_of_their_lines():
    late, early = Fault("b.c", Place("r.yaml", 9, 2), "late"), Fault("", Place("r.yaml", 2, 1), "early")
    error = RecipeError([late, early, Fault("x", Place("override"), "loose")])
    assert error.faults[1:] == (early, late)
    assert str(error) == "override: x: loose\nr.yaml:2:1: early\nr.yaml:9:2: b.c: late"


def test_nearest_and_listing():
    assert nearest("ppo_clp", ["gspo", "ppo-clip"]) == " Did you mean 'ppo-clip'?"
    assert nearest("Token_Mean", ["token-mean"]) == " Did you mean 'token-mean'?"
    assert nearest("k", ["low-var-kl"]) == " Did you mean 'low-var-kl'?"
    assert nearest("zebra", ["gspo"]) == nearest("", ["gspo"]) == nearest("x", []) == ""
    assert [listing(x) for x in ([], ["a"], ["b", "a"], ["c", "a", "b"])] == ["nothing", "a", "a and b", "a, b and c"]


def test_public_names_are_all_there():
    assert sorted(registry.__all__) == sorted(set(registry.__all__))
    assert all(hasattr(registry, name) for name in registry.__all__)
