"""What decorators refuse, by name and place."""

from functools import partial
from typing import TYPE_CHECKING

import pytest
from pydantic import Field, model_validator
from refusing import refused

import lossary.registry as registry
from lossary.registry import (
    KINDS,
    Catalog,
    Level,
    PerGroup,
    PerSequence,
    PerToken,
    Report,
    SignatureError,
    Strict,
    advantage_estimator,
    aggregation,
    auxiliary_loss,
    coefficient,
    component_of,
    correction,
    kl_estimator,
    policy_loss,
    reward_term,
    task,
    tracker,
    value_loss,
)
from lossary.registry.component import describe

if TYPE_CHECKING:
    from nowhere import Unimportable

HERE = "test_registry_refusals.py"


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
        describe(max, KINDS["policy_loss"])


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


def test_whose_reward_it_is_must_be_said():
    def half(rewards): ...

    def paid(rewards) -> PerSequence: ...

    assert "must say whose reward it returns: -> PerSequence (of `rewards`) or -> PerToken" in refused(reward_term, half)
    assert component_of(reward_term(paid)).returns is Level.SEQUENCE


@pytest.mark.parametrize(
    ("trait", "rules", "said"),
    [
        ("suits", {"tau": "<= foo"}, "suits names 'foo', which is no hyperparameter. Did you mean"),
        ("suits", {"tau": "<= 1 +"}, "suits 'tau': '<= 1 +' cannot be read"),
        ("suits", {"tau": "<= tau * 2"}, "may hold numbers, hyperparameters"),
        ("suits", {"tau": "<= f(2)"}, "may hold numbers, hyperparameters"),
        ("requires", {"tua": "<= 2"}, "requires names 'tua', which is no hyperparameter. Did you mean 'tau'?"),
        ("requires", {"tau": "token-mean"}, "'token-mean' is no rule; write one as '<= upper'"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(trait, rules, said):
    def f(log_prob, *, tau: float = 1.0, too: float = 2.0) -> PerToken: ...

    assert said in refused(policy_loss, f, **{trait: rules})


@pytest.mark.parametrize(
    ("traits", "said"),
    [
        ({"aliases": ("a b", 3)}, "the alias 'a b' holds a slash, a colon, a dot or a space"),
        ({"aliases": ("ab", 3)}, "the alias 3 is no text; write it in quotation marks"),
        ({"aliases": (None,)}, "the alias None is no text"),
        ({"aliases": 3}, "aliases and claims are tuples of names"),
        ({"aliases": ("",)}, "the alias '' is empty"),
        ({"name": ""}, "the name '' is empty"),
        ({"name": 3}, "the name 3 is no text"),
        ({"aliases": ("null",)}, "the alias 'null' is a value in YAML, so no recipe could say it"),
        ({"aliases": ("True",)}, "the alias 'True' is a value in YAML"),
        ({"aliases": ("1e5",)}, "the alias '1e5' is a value in YAML"),
        ({"name": "0x1f"}, "the name '0x1f' is a value in YAML"),
        ({"aliases": ("a\nb",)}, r"the alias 'a\nb' holds more than letters, digits, '-', '_' and '+'"),
        ({"aliases": ("p\x1b[31m",)}, r"the alias 'p\x1b[31m' holds more than letters"),
        ({"aliases": ("p\u200bq",)}, r"the alias 'p\u200bq' holds more than letters"),
        ({"aliases": ("{use",)}, "the alias '{use' holds more than letters"),
    ],
)
def test_a_name_that_no_recipe_could_say_is_refused(traits, said):
    def mine(log_prob): ...

    text = refused(policy_loss, mine, **traits)
    assert said in text
    assert text.startswith(f"{HERE}:{mine.__code__.co_firstlineno}: policy_loss ")


def test_a_name_of_letters_and_digits_of_any_script_may_have_a_plus():
    @policy_loss(name="Überläufer++", aliases=("zwei2", "k3_x"))
    def mine(log_prob): ...

    assert component_of(mine).name == "Überläufer++"
    assert component_of(mine).aliases[1] == "k3-x"


class Called:
    async def __call__(self, log_prob): ...


def test_what_gives_no_result_when_it_is_called_is_refused():
    async def later(log_prob): ...

    def piecewise(log_prob):
        yield log_prob

    async def both(log_prob):
        yield log_prob

    class Made:
        def __init__(self, log_prob): ...

    assert "policy_loss 'later' is an async function" in refused(policy_loss, later)
    assert "policy_loss 'piecewise' is a generator function, for it has a `yield`" in refused(policy_loss, piecewise)
    assert "is a generator function" in refused(policy_loss, both)
    for use in (later, partial(later), Called()):
        with pytest.raises(SignatureError, match="is an async function"):
            Catalog().resolve("policy_loss", use)
    with pytest.raises(SignatureError, match="policy_loss 'Made' is a class"):
        policy_loss(Made)


def test_a_class_may_make_a_task():
    class Sums:
        def __init__(self, *, terms: int = 2): ...

    assert component_of(task(name="sums")(Sums)).function is Sums


def test_a_lambda_has_no_name_of_its_own():
    assert "a lambda was decorated, which has no name; write a def, or say name=." in refused(policy_loss, lambda log_prob: log_prob)
    assert component_of(policy_loss(name="short")(lambda log_prob: log_prob)).name == "short"
