"""From sections to an objective: terms, coefficients, aggregations and what is asked of a batch; all as dicts in Python."""

import functools

import pytest
import torch

from lossary import (
    Batch,
    LossaryError,
    PerToken,
    RecipeError,
    RecipeWarning,
    auxiliary_loss,
    coefficient,
    compose,
    load_recipe,
    policy_loss,
)
from lossary.pipeline import read_yaml


@auxiliary_loss
def pull(log_prob: PerToken, *, strength: float = 1.0) -> PerToken:
    """Pull."""
    return strength * log_prob.square()


@coefficient
def spying(rewards: torch.Tensor) -> float:
    """A coefficient that wants to see a column."""
    return 1.0


def plain(log_prob, advantages, *, tau: float = 0.5):
    """A function without any decorator."""
    return -tau * advantages * log_prob


def faults(recipe, **how):
    with pytest.raises(RecipeError) as caught:
        compose(recipe, **how)
    return [f"{f.path}: {f.message}" for f in caught.value.faults]


def terms(recipe, **how):
    return {t.name: t for t in compose(recipe, **how).plan.terms}


def loss_of(recipe, **columns):
    o = compose(recipe)
    batch = Batch.from_packed(
        [2], **{k: torch.tensor(v, dtype=torch.float64) for k, v in columns.items() if k not in ("log_prob", "entropy")}
    )
    outputs = {k: torch.tensor(columns[k], dtype=torch.float64) for k in ("log_prob", "entropy") if k in columns}
    return o.loss(o.weigh(o.estimate(batch)), **outputs)


# ── what a slot may hold ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_slot_takes_a_name_a_mapping_a_callable_and_an_import_path():
    for use in ("ppo-clip", "ppo_clip", "regular", "lossary/ppo-clip", {"use": "ppo-clip"}):
        assert terms({"policy_loss": use})["policy"].bound.component.name == "ppo-clip"
    assert terms({"policy_loss": plain})["policy"].bound.params == {"tau": 0.5}
    assert terms({"policy_loss": {"use": plain, "tau": 2}})["policy"].bound.params == {"tau": 2.0}
    found = terms({"policy_loss": "lossary.algorithms.policy.grpo:grpo", "aggregation": "seq-mean-token-mean"})["policy"].bound.component
    assert (found.name, found.distribution) == ("grpo", "lossary")


def test_what_was_handed_in_stays_the_same_object():
    class Loss:
        def __call__(self, log_prob, advantages):
            return -advantages * log_prob

    mine = Loss()
    recipe = {"policy_loss": {"use": mine}, "advantage": ("gae", "whiten")}
    assert terms(recipe)["policy"].bound.component.function is mine
    assert recipe == {"policy_loss": {"use": mine}, "advantage": ("gae", "whiten")}


@pytest.mark.parametrize(
    ("use", "say"),
    [
        (5, "expected the name of a policy_loss, or a mapping with 'use'; it is 5"),
        (["ppo-clip"], "expected the name of a policy_loss, or a mapping with 'use'; it is ['ppo-clip']"),
        ({"use": ""}, "'use' must name a policy_loss; it is ''"),
        ({"use": {"a": 1}}, "'use' must name a policy_loss"),
        ("nobody/ppo-clip", "No policy_loss is called 'nobody/ppo-clip'. 'ppo-clip' comes from lossary: say lossary/ppo-clip."),
        ("k3", "'k3' is a kl, not a policy_loss: it stands under 'kl'."),
        ("no.such.module:f", "'no.such.module:f' cannot be imported: ModuleNotFoundError"),
        ("lossary.algorithms.policy.grpo:grop", "the module has no 'grop'. Did you mean 'grpo'?"),
        ("lossary.algorithms.policy.grpo:__doc__", "is no function but str"),
        ("lossary.estimators.kl.k3:k3", "'k3' is a kl, no policy_loss."),
        (lambda log_prob, advantages, *args: log_prob, "*args is no contract"),
        (lambda log_prob, advantage: log_prob, "asks for the column 'advantage', which nobody declared. Did you mean 'advantages'?"),
        (lambda log_prob, values: log_prob, "a policy_loss must not read 'values'"),
    ],
)
def test_a_slot_that_holds_something_else_says_what_it_wants(use, say):
    (said,) = faults({"policy_loss": use})
    assert say in said


def test_kinds_are_named_with_the_right_article():
    assert "expected the name of an aggregation" in faults({"policy_loss": "reinforce", "aggregation": 3})[0]
    assert "expected the name of an advantage" in faults({"policy_loss": "reinforce", "advantage": 3})[0]


@pytest.mark.parametrize("section", ["advantage", "kl", "auxiliary"])
def test_an_empty_list_is_no_choice(section):
    assert faults({"policy_loss": "reinforce", section: []}) == [f"{section}: an empty list; leave the section out instead"]


def test_keys_of_a_dict_are_text():
    assert faults({"policy_loss": {"use": "reinforce", 3: 4}}) == ["policy_loss: the key 3 is no text"]
    assert faults({1: 2, "policy_loss": "reinforce"}) == [": the key 1 is no text"]


# ── terms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_term_has_a_name_of_its_own():
    recipe = {
        "policy_loss": "reinforce",
        "kl": [{"use": "k3", "coef": 0.1}, {"use": "k2", "coef": 0.2}],
        "entropy": 0.01,
        "auxiliary": [{"use": "sft", "coef": 1}, {"use": "sft", "coef": 2}, {"use": pull, "coef": 1}, {"use": "entropy", "coef": 1}],
        "value_loss": "clipped-mse",
    }
    named = terms(recipe)
    assert list(named) == ["policy", "kl", "kl_1", "entropy", "sft", "sft_2", "pull", "entropy_2", "value"]
    assert {t.role for name, t in named.items() if name != "value"} == {"actor"}
    assert named["value"].role == "critic"
    assert len({t.metric for t in named.values()}) == 9


def reporting(log_prob):
    """Report what it sees."""
    return -log_prob, {"seen": log_prob.detach()}


def also_reporting(log_prob):
    """Report under the same name."""
    return -log_prob, {"seen": log_prob.detach()}


def test_no_two_terms_share_a_name_however_they_are_called():
    def sft_2(log_prob):
        """Bears the name that a second sft would be given."""
        return -log_prob

    recipe = {"auxiliary": [{"use": "sft", "coef": 1}, {"use": "sft", "coef": 2}, {"use": sft_2, "coef": 5}]}
    assert len(terms(recipe)) == 3
    assert loss_of(recipe, log_prob=[-1.0, -1.0]).total.item() == pytest.approx(8)


def test_two_terms_that_report_the_same_name_are_both_seen():
    kl = [{"use": "k3", "coef": 0.1}, {"use": "k2", "coef": 0.2}]
    recipe = {"policy_loss": reporting, "kl": kl, "auxiliary": [{"use": also_reporting, "coef": 0.5}]}
    out = loss_of(recipe, ref_log_prob=[0.0, 0.0], log_prob=[0.0, 0.0])
    assert {"actor/kl_loss", "actor/kl_1_loss", "actor/seen", "actor/also_reporting_seen"} <= set(out.reports)


def test_each_term_may_have_an_aggregation_of_its_own():
    recipe = {
        "policy_loss": "reinforce",
        "aggregation": "token-mean",
        "entropy": {"coef": 0.1, "aggregation": "token-sum"},
        "kl": {"use": "k3", "coef": 1, "aggregation": {"use": "seq-mean-token-sum-norm", "loss_scale_factor": 4}},
        "auxiliary": {"use": "sft", "coef": 1, "aggregation": "token_mean"},
    }
    assert [t.aggregation for t in terms(recipe).values()] == [
        "token-mean", "seq-mean-token-sum-norm(loss_scale_factor=4.0)", "token-sum", "token-mean",
    ]  # fmt: skip
    o = compose(recipe)
    batch = o.weigh(Batch.from_packed([2], advantages=torch.ones(2), ref_log_prob=torch.zeros(2)))
    assert {k: w.tolist() for k, w in batch.weights.items()} == {
        "token-mean": [0.5, 0.5], "seq-mean-token-sum-norm(loss_scale_factor=4.0)": [0.25, 0.25], "token-sum": [1.0, 1.0],
    }  # fmt: skip
    assert (
        "kl.aggregation.use: No aggregation is called 'tokn-mean'"
        in faults({**recipe, "kl": {"use": "k3", "coef": 1, "aggregation": "tokn-mean"}})[0]
    )


@pytest.mark.parametrize("coef", [0, 0.0, "0", {"use": "constant", "value": 0}])
def test_a_term_that_counts_for_nothing_is_dropped_with_what_it_needs(coef):
    o = compose(
        {
            "policy_loss": "reinforce",
            "kl": {"use": "k3", "coef": coef},
            "entropy": {"coef": coef},
            "value_loss": {"use": "clipped-mse", "coef": coef},
        }
    )
    fixed = not isinstance(coef, dict)
    assert [t.name for t in o.plan.terms] == (["policy"] if fixed else ["policy", "kl", "entropy", "value"])
    assert ("ref_log_prob" in o.needs()) is not fixed
    if fixed:
        assert list(o.needs("loss")) == ["log_prob"]
        assert "kl: coef is 0, so 'k3' is not computed." in o.plan.notes


def test_a_reward_kl_that_counts_for_nothing_is_dropped_too():
    o = compose({"policy_loss": "reinforce", "advantage": "rloo", "kl": {"use": "k1", "coef": 0, "apply": "reward"}})
    assert o.plan.reward_kl == ()
    assert set(o.needs()) == {"group_ids"}


def test_a_kl_in_the_reward_that_nothing_would_read_is_a_fault():
    kl = {"use": "k1", "coef": 0.1, "apply": "reward"}
    say = "kl.apply: the KL is to change the reward, but no advantage estimator of this recipe reads rewards."
    assert faults({"policy_loss": "reinforce", "kl": kl}) == [say]
    assert faults({"policy_loss": "reinforce", "advantage": "whiten", "kl": kl}) == [say]
    compose({"policy_loss": "reinforce", "advantage": ["gae", "whiten"], "kl": kl})


def test_apply_is_the_loss_unless_said():
    assert faults({"policy_loss": "reinforce", "kl": {"use": "k3", "coef": 1, "apply": "rewards"}}) == [
        "kl.apply: 'rewards' is not one of loss and reward."
    ]
    assert faults({"policy_loss": "reinforce", "kl": "k3"}) == [
        "kl.coef: required: how much the term counts, a number or a coefficient such as {use: linear, ...}"
    ]


@pytest.mark.parametrize(
    ("coef", "say"),
    [
        (None, "required: how much the term counts"), ("high", "'high' is not a number"), (True, "true is not a number"), ([1], "[1] is not a number"),
        (float("nan"), "nan is not a number"), ("inf", "'inf' is not a number"), ("adaptive-kl", "'adaptive-kl' is not a number"),
        ({"use": "linaer"}, "No coefficient is called 'linaer'. Did you mean 'linear'?"), ({}, "'use' must name a coefficient"),
        ({"use": "linear", "start": 0}, "required, but not given"), ({"use": "linear", "start": 0, "end": 1, "steps": 0}, "0 is out of bounds"),
        ({"use": "adaptive-kl", "kl_coef": -1, "target": 1, "horizon": 1}, "-1 is out of bounds"), ({"use": "k3"}, "'k3' is a kl, not a coefficient"),
    ],
)  # fmt: skip
def test_a_coefficient_is_a_number_or_a_component(coef, say):
    found = faults({"policy_loss": "reinforce", "entropy": {"coef": coef}})
    assert all(f.startswith("entropy.coef") for f in found)
    assert say in found[0]


def test_a_coefficient_sees_no_column():
    assert (
        "the coefficient 'spying' reads 'rewards'; it may read measured, state and step."
        in faults({"policy_loss": "reinforce", "entropy": {"coef": {"use": spying}}})[0]
    )


def test_a_linear_coefficient_follows_committed_steps():
    o = compose({"policy_loss": "reinforce", "entropy": {"coef": {"use": "linear", "start": 1.0, "end": 0.0, "steps": 2}}})
    seen = []
    for _ in range(4):
        batch = Batch.from_packed([1], advantages=torch.ones(1))
        seen.append(o.weigh(batch).coefficients["entropy"].item())
        o.commit()
    assert seen == [1.0, 0.5, 0.0, 0.0]


def test_the_old_policy_may_be_the_current_one():
    out = loss_of({"policy_loss": "ppo-clip", "old_log_prob": "current"}, advantages=[1.0, 3.0], log_prob=[-1.0, -2.0])
    assert out.total.item() == -2.0
    assert "old_log_prob" not in compose({"policy_loss": "ppo-clip", "old_log_prob": "current"}).needs()
    assert faults({"policy_loss": "ppo-clip", "old_log_prob": "curent"}) == [
        "old_log_prob: 'curent' is not one of current and recorded. Did you mean 'current'?"
    ]


@pytest.mark.parametrize("key", ["empty", "approximate", "old_log_prob"])
def test_a_choice_is_one_of_few(key):
    for wrong in ("zzz", 1, True, ["drop"]):
        (said,) = faults({"policy_loss": "reinforce", key: wrong})
        assert f"{key}: {wrong!r} is not one of" in said


# ── warnings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("recipe", "say"),
    [
        ({"policy_loss": "gspo", "aggregation": "token-mean"}, "'gspo' is made for the aggregation seq-mean-token-mean, not token-mean"),
        ({"policy_loss": {"use": "gspo", "clip_ratio_high": 0.2}, "aggregation": "seq-mean-token-mean"}, "clip_ratio_high: 0.2 does not suit 'gspo'"),
        ({"policy_loss": {"use": "dual-clip", "clip_ratio_high": 2.5, "clip_ratio_c": 3.0}}, "3 does not suit 'dual-clip', which is made for clip_ratio_c > 1 + clip_ratio_high"),
        ({"policy_loss": "reinforce", "kl": {"use": "k1", "coef": 0.1}}, "kl: 'k1' as a loss gives no useful gradient; it suits apply: reward"),
        ({"policy_loss": {"use": "two-sided-delta", "clip_ratio_high": 0.5, "delta": 1.4}}, "1.4 does not suit 'two-sided-delta', which is made for delta > 1 + clip_ratio_high"),
        ({"policy_loss": {"use": "cispo", "imp_ratio_cap": 0.2}}, "0.2 does not suit 'cispo', which is made for imp_ratio_cap >= 1"),
        ({"policy_loss": "ppo-clip", "correction": {"use": "reject-k1", "lower": 0.9, "upper": 2.0, "denominator": "kept"}}, "lower: 0.9 does not suit 'reject-k1', which is made for lower = 1 / upper"),
        ({"policy_loss": "ppo-clip", "correction": {"use": "truncated-is", "cap": 0.5}}, "cap: 0.5 does not suit 'truncated-is', which is made for cap >= 1"),
        ({"policy_loss": "ppo-clip", "correction": ["truncated-is", {"use": "icepop", "denominator": "kept"}]}, "'icepop' weighs what 'truncated-is' has weighed already"),
        ({"policy_loss": "decoupled-ppo", "correction": "truncated-is"}, "'decoupled-ppo' corrects for the sampler itself; 'truncated-is' does it once more"),
        ({"policy_loss": "grpo"}, "'grpo' is made for the aggregation seq-mean-token-mean, not token-mean"),
    ],
)  # fmt: skip
def test_what_is_allowed_but_hardly_meant_is_warned_of(recipe, say):
    with pytest.warns(RecipeWarning) as caught:
        o = compose(recipe)
    assert [say in str(w.message) for w in caught] == [True]
    assert caught[0].filename == __file__
    assert [say in w for w in o.warnings] == [True]


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"correction": {"use": "truncated-is", "floor": 3, "cap": 2}}, "correction.floor: 3 must be <= cap"),
        ({"correction": {"use": "masked-is", "lower": 2, "upper": 0.5, "denominator": "kept"}}, "correction.lower: 2 must be <= upper"),
        ({"reward": {"use": "overlong", "max_resp_len": 5, "overlong_buffer_len": 50}, "advantage": "remax"}, "reward.overlong_buffer_len: 50 must be <= max_resp_len"),
        ({"correction": {"use": "veto", "denominator": None}}, "'null' is not one of kept and original"),
        ({"policy_loss": "gspo", "correction": {"use": "drop-impossible", "denominator": "original"}}, "'drop-impossible' drops tokens inside the loss, where 'gspo', which looks at more than one token"),
        ({"correction": [{"use": "drop-impossible", "denominator": "original"}, {"use": "off-policy-sequence", "denominator": "original"}]}, "where 'off-policy-sequence', which looks at more"),
        ({"kl": {"use": "importance-sequence", "coef": 1}, "correction": {"use": "drop-impossible", "denominator": "original"}}, "say 'decide: measure'"),
        (
            {"correction": [{"use": "drop-impossible", "denominator": "kept", "decide": x} for x in ("measure", "soon")]},
            "'soon' is not one of loss and measure",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_a_fault(sections, said):
    assert [said in fault for fault in faults({"policy_loss": "reinforce", **sections})] == [True]


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
def test_what_measure_decides_may_be_seen_by_any_loss():
    compose({"policy_loss": "gspo", "correction": {"use": "drop-impossible", "denominator": "kept", "decide": "measure"}})
    compose({"policy_loss": "reinforce", "correction": {"use": "truncated-is", "floor": 3.0, "cap": None}})


def test_settings_within_what_suits_are_silent():
    compose({"policy_loss": "gspo", "aggregation": "seq-mean-token-mean"})
    compose({"policy_loss": {"use": "dual-clip", "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}})
    compose(
        {"policy_loss": "ppo-clip", "correction": {"use": "reject-k1", "agg": "mean", "lower": 0.99, "upper": 1.01, "denominator": "kept"}}
    )
    compose({"policy_loss": "ppo-clip", "correction": {"use": "reject-k1", "lower": 0.9, "upper": None, "denominator": "kept"}})
    compose({"policy_loss": "reinforce", "advantage": "rloo", "kl": {"use": "k1", "coef": 0.1, "apply": "reward"}})


# ── writing it down ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["grpo", "ppo", "dapo", "sft", "reinforce-plus-plus", "rloo", "dr-grpo", "demo"])
def test_a_recipe_written_down_is_the_same_recipe(name):
    recipe = load_recipe(name, ["train.lr=1e-6", "train.seed=7", "train.grad_clip=null"])
    again = read_yaml(recipe.text(), "again")
    assert again.faults == []
    assert again.values == recipe.values


def test_functions_are_written_as_import_paths():
    from lossary.algorithms.policy.grpo import grpo

    text = load_recipe({"policy_loss": {"use": grpo}, "plugins": ["mine.py", "my_pkg"]}).text()
    assert "lossary.algorithms.policy.grpo:grpo" in text
    assert "- mine.py\n- my_pkg" in text


@pytest.mark.parametrize("function", [lambda log_prob: log_prob, functools.partial(plain, tau=2.0)], ids=["lambda", "partial"])
def test_what_has_no_import_path_cannot_be_written(function):
    with pytest.raises(LossaryError, match="has no import path, so the recipe cannot be written down"):
        load_recipe({"policy_loss": function}).text()


def test_components_of_a_script_join_for_this_recipe_only():
    @policy_loss
    def only_here(log_prob: PerToken) -> PerToken:
        """Here."""
        return log_prob

    compose({"policy_loss": "only-here"}, components=[only_here])
    (said,) = faults({"policy_loss": "only-here"})
    assert "No policy_loss is called 'only-here'" in said
