"""A signature is a contract: what decorators read from it, what they refuse, and that they change nothing else."""

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import pytest
from pydantic import Field, model_validator
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
    Strict,
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

if TYPE_CHECKING:
    from nowhere import Unimportable

HERE = "test_registry.py"


def refused(decorator, function, *, error=SignatureError, **traits):
    """Decorate, expect a refusal, and return its text, which always says where the function stands."""
    with pytest.raises(error) as caught:
        decorator(**traits)(function)
    text = str(caught.value)
    line = function.__code__.co_firstlineno
    assert text.startswith(f"{HERE}:{line}: "), text
    return text


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
        claims=("on-policy-gradient",), init=start,
    )  # fmt: skip
    def f(advantages: PerToken, state: Any, *, alpha: float = 0.5) -> tuple[PerToken, dict[str, Any]]:
        """One line.

        More of it.
        """
        return advantages, state

    made = component_of(f)
    assert made.kind is KINDS["advantage"]
    assert (made.name, made.aliases, made.paper, made.scope) == ("my-loss", ("low-var", "other"), "arXiv:1", "group")
    assert (made.suits, made.claims, made.init) == ({"aggregation": "token-mean"}, ("on-policy-gradient",), start)
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
    def made(*, width: int = 3): ...

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


def test_star_args_are_no_contract():
    def many(log_prob, *columns): ...

    def more(log_prob, **hyper): ...

    assert "*columns is no contract" in refused(policy_loss, many)
    assert "*hyper is no contract" in refused(policy_loss, more)


def test_a_hyperparameter_before_the_star_is_refused():
    def f(log_prob, clip_ratio_low=0.2): ...

    text = refused(policy_loss, f)
    assert "'clip_ratio_low' has the default 0.2" in text
    assert "a hyperparameter stands after *" in text


@pytest.mark.parametrize("name", ["values", "totals", "measured"])
def test_gradient_isolation_actor_terms_cannot_see_the_critic(name):
    scope = {}
    exec(f"def f(log_prob, {name}): ...", scope)
    with pytest.raises(SignatureError, match=f"policy_loss 'f': a policy_loss must not read '{name}'"):
        policy_loss(scope["f"])


@pytest.mark.parametrize(
    ("decorator", "name", "why"),
    [
        (value_loss, "log_prob", "Critic terms cannot see the policy"),
        (value_loss, "entropy", "Critic terms cannot see the policy"),
        (auxiliary_loss, "values", "Actor terms cannot see the critic's output"),
        (kl_estimator, "values", "Actor terms cannot see the critic's output"),
        (advantage_estimator, "log_prob", "read 'old_log_prob'"),
        (reward_term, "entropy", "read 'old_log_prob'"),
        (correction, "values", "Actor terms cannot see the critic's output"),
        (aggregation, "logits", ""),
        (coefficient, "log_z", ""),
    ],
)
def test_forbidden_columns_say_why(decorator, name, why):
    scope = {}
    exec(f"def f({name}): ...", scope)
    with pytest.raises(SignatureError) as caught:
        decorator(scope["f"])
    assert f"must not read {name!r}" in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("decorator", [task, tracker])
def test_tasks_and_trackers_read_no_columns(decorator):
    def f(rewards): ...

    assert "reads no columns; put 'rewards' after *" in refused(decorator, f)


def test_a_stateful_component_says_its_first_state_and_only_it():
    def stateful(rewards, state): ...

    def plain(rewards): ...

    assert "must therefore say init=" in refused(advantage_estimator, stateful)
    assert "does not name 'state'" in refused(advantage_estimator, plain, init=dict)


def test_an_unknown_scope_or_claim_says_what_is_known_and_what_is_nearest():
    def f(log_prob): ...

    text = refused(policy_loss, f, scope="sequnce")
    assert "it must be one of group, sequence, step and token" in text
    assert "Did you mean 'sequence'?" in text
    text = refused(policy_loss, f, claims=("zero_at_equalty",))
    assert "claims 'zero_at_equalty'" in text
    assert "Did you mean 'zero-at-equality'?" in text


@pytest.mark.parametrize("traits", [{"aliases": "vanilla"}, {"claims": "non-negative"}])
def test_one_name_in_place_of_a_tuple_is_refused(traits):
    def f(log_prob): ...

    assert 'write ("name",) for a single one' in refused(policy_loss, f, **traits)


@pytest.mark.parametrize("traits", [{"name": "mine/f"}, {"name": "a:b"}, {"aliases": ("ok", "two words")}, {"name": "f.py"}])
def test_names_hold_nothing_that_a_recipe_reads_otherwise(traits):
    def f(log_prob): ...

    assert "mean something in a recipe" in refused(policy_loss, f, **traits)


@pytest.mark.parametrize(
    ("decorator", "hint", "said"),
    [
        (kl_estimator, PerSequence, "returns sequence values; a kl returns PerToken"),
        (aggregation, PerGroup, "returns group values; a aggregation returns PerToken"),
        (advantage_estimator, tuple[PerGroup, Report], "returns group values; a advantage returns PerSequence and PerToken"),
    ],
)
def test_a_result_at_the_wrong_level_is_refused(decorator, hint, said):
    def f(old_log_prob): ...

    f.__annotations__["return"] = hint
    assert said in refused(decorator, f)


def test_annotations_that_cannot_be_read_are_refused_by_name():
    def unknown(log_prob: "Unimportable"): ...

    def syntax(log_prob: "not a ( type"): ...  # noqa: F722

    def attribute(log_prob: "Field.nothing_of_the_kind"): ...

    assert "the signature cannot be read" in refused(policy_loss, unknown)
    assert "Unimportable" in refused(policy_loss, unknown)
    assert "the signature cannot be read" in refused(policy_loss, syntax)
    assert "nothing_of_the_kind" in refused(policy_loss, attribute)


def test_a_callable_without_a_signature_is_refused():
    with pytest.raises(SignatureError, match="signature cannot be read"):
        describe(dict, KINDS["policy_loss"])


def test_params_is_the_way_to_rules_across_fields_and_must_agree_with_the_signature():
    class Rules(Strict):
        low: float = 0.2
        high: float = 0.3

        @model_validator(mode="after")
        def _order(self):
            if self.low > self.high:
                raise ValueError("low must not exceed high")
            return self

    @policy_loss(params=Rules)
    def fine(log_prob, *, low: float = 0.2, high: float = 0.3): ...

    def other(log_prob, *, low: float = 0.2): ...

    assert component_of(fine).params is Rules
    assert registry.faults_of(Rules, {"low": 1.0}) == [("", "low must not exceed high")]
    text = refused(policy_loss, other, params=Rules)
    assert "params=Rules has high and low, the signature low" in text


def test_an_undeclared_column_names_the_nearest_and_the_way_to_declare_one():
    @policy_loss
    def f(log_prob, advantage): ...

    with pytest.raises(SignatureError) as caught:
        Catalog().extended([f])
    text = str(caught.value)
    assert text.startswith(f"{HERE}:{f.__code__.co_firstlineno}: policy_loss 'f' asks for the column 'advantage'")
    assert "Did you mean 'advantages'?" in text
    assert "column('advantage', level=..., doc=...)" in text


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
