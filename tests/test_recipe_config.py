"""Known faults of configuration, in the words of our recipes: each by its number."""

import re

import pytest

from lossary import RecipeError, compose, load_recipe
from lossary.models.reference import ReferenceSettings
from lossary.pipeline.hinting import TRAINING
from lossary.trainer.settings import (
    CriticSettings,
    DiagnoseSettings,
    EvaluateSettings,
    ModelSettings,
    RolloutSettings,
    Settings,
    TrainSettings,
    WarmUpSettings,
)

MY_LOSSES = """
from lossary import PerToken, policy_loss

@policy_loss
def tilted(log_prob: PerToken, *, eps: float = 1.0) -> PerToken:
    '''Tilt.'''
    return log_prob * eps
"""


@pytest.fixture
def written(tmp_path):
    """Write a recipe (and a file of losses beside it) and return its path."""

    def write(text):
        (tmp_path / "my_losses.py").write_text(MY_LOSSES)
        (tmp_path / "r.yaml").write_text(text)
        return tmp_path / "r.yaml"

    return write


def refused(file, *words, overrides=(), trainer=False):
    """The one fault of a recipe, which holds all the words."""
    recipe = load_recipe(file, overrides)
    with pytest.raises(RecipeError) as caught:
        (Settings.of if trainer else compose)(recipe)
    assert len(caught.value.faults) == 1
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert overrides or re.match(r".*r\.yaml:\d+:\d+: ", said)
    return said


def params(file, overrides=()):
    return dict(compose(file, overrides).plan.terms[0].bound.params)


def test_config_o1_a_misspelt_hyperparameter_names_its_path_and_the_right_one(written):
    said = refused(
        written("policy_loss:\n  use: ppo-clip\n  clip_ratio_low: 0.2\n  clip_ratio_hihg: 0.28\n"),
        "policy_loss.clip_ratio_hihg",
        "'clip_ratio_high'",
    )
    assert "r.yaml:4:3: " in said


def test_config_o2_a_key_in_the_wrong_place_or_with_a_hyphen_names_the_right_one(written):
    refused(written("lr: 1.0e-6\npolicy_loss: ppo-clip\n"), "lr: there is no section 'lr'. It is a key of train and warm_up.")
    refused(written("policy_loss: {use: ppo-clip, clip-ratio-low: 0.2}\n"), "policy_loss.clip-ratio-low", "Did you mean 'clip_ratio_low'?")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("clip_ratio_high: 0.3\npolicy_loss: ppo-clip\n", "clip_ratio_high: there is no section 'clip_ratio_high'. It is a key of policy_loss."),
        ("coef: 0.3\npolicy_loss: ppo-clip\nkl: {use: k3, coef: 1}\n", "coef: there is no section 'coef'. It is a key of kl and policy_loss."),
        ("ppo-clip: {clip_ratio_high: 0.3}\npolicy_loss: ppo-clip\n", "'ppo-clip' is a policy_loss: write policy_loss: ppo-clip."),
        ("policy-loss: ppo-clip\nvalue_loss: clipped-mse\n", "there is no section 'policy-loss'. Did you mean 'policy_loss'?"),
        ("policy_loss: ppo-clip\nkl: {use: k3, coef: 1, clip_ratio_high: 0.3}\n", "kl.clip_ratio_high: unknown key: 'clip_ratio_high' is a key of policy_loss, not of kl."),
        ("policy_loss: {use: ppo-clip, apply: reward}\n", "policy_loss.apply: unknown key: 'apply' is a key of kl, not of policy_loss."),
        ("policy_loss: {use: ppo-clip, lam: 0.9}\nadvantage: gae\n", "policy_loss.lam: unknown key: 'lam' is a key of advantage, not of policy_loss."),
        ("policy_loss: {use: ppo-clip, lam: 0.9}\n", "policy_loss.lam: unknown key: 'lam' is a key of advantage, not of policy_loss."),
        ("policy_loss: {use: ppo-clip, epochs: 4}\n", "policy_loss.epochs: unknown key: 'epochs' is a key of train, not of policy_loss."),
        ("policy_loss: ppo-clip\nadvantage: {use: gae, aggregation: token-mean}\n", "'aggregation' is a key of policy_loss, not of advantage."),
        ("policy_loss: {use: ppo-clip, entropy: 0.1}\n", "'entropy' is a section of its own, not a key of policy_loss."),
        ("policy_loss: ppo-clip\nkl: {use: k3, coeff: 1, coef: 1}\n", "kl.coeff: unknown key. Did you mean 'coef'?"),
        ("policy_loss: ppo-clip\nkl: {use: gae, coef: 1}\n", "kl.use: 'gae' is an advantage, not a kl: it stands under 'advantage'."),
        ("policy_loss: {use: kl-cov, clip_cov_ratio: 0.1}\n", "clip_cov_ratio: unknown key. Did you mean"),
        ("policy_loss: sft\n", "'sft' is an auxiliary_loss, not a policy_loss: it stands under 'auxiliary'."),
        ("policy_loss: ppo-clip\nkl: {use: k3, coef: {use: cosine-annealing, start: 1}}\n", "No coefficient is called 'cosine-annealing'. Did you mean 'cosine'?"),
    ],
)  # fmt: skip
def test_what_stands_in_the_wrong_section_is_told_the_right_one(text, said, written):
    refused(written(text), said)


def test_a_key_of_the_trainer_in_another_section_of_its(written):
    file = written("policy_loss: reinforce\ntask: sort-letters\ntrain: {samples_per_prompt: 4}\n")
    refused(file, "train.samples_per_prompt: unknown key: 'samples_per_prompt' is a key of rollout, not of train.", trainer=True)


def test_the_hints_know_the_keys_of_the_trainer():
    fields = {
        "model": ModelSettings,
        "critic": CriticSettings,
        "reference": ReferenceSettings,
        "warm_up": WarmUpSettings,
        "rollout": RolloutSettings,
        "train": TrainSettings,
        "evaluate": EvaluateSettings,
        "diagnose": DiagnoseSettings,
    }
    assert {name: set(keys) for name, keys in TRAINING.items() if name not in ("task", "trackers")} == {
        name: set(m.model_fields) for name, m in fields.items()
    }


def test_config_o3_an_old_name_is_told_the_new_ones_and_never_rewritten(written):
    for old in ("cliprange", "clip_range", "eps_clip", "epsilon"):
        refused(written(f"policy_loss: {{use: ppo-clip, {old}: 0.2}}\n"), old, "Here it is called 'clip_ratio_high' and 'clip_ratio_low'.")
    refused(written("policy_loss: ppo-clip\nvalue_loss: {use: clipped-mse, cliprange: 0.2}\n"), "Here it is called 'cliprange_value'.")


@pytest.mark.parametrize("spelling", ["3e-6", "3E-6", "3.0e-6", "0.000003", "'3e-6'"])
def test_config_o4_a_number_is_a_number_however_it_is_spelt(spelling, written):
    file = written(
        f"policy_loss: ppo-clip\nadvantage: rloo\ntask: sort-letters\nkl: {{use: k3, coef: {spelling}}}\ntrain: {{lr: {spelling}}}\n"
    )
    settings = Settings.of(load_recipe(file))
    for value in (settings.train.lr, settings.plan.terms[1].coefficient.fixed):
        assert value == 3e-06
        assert type(value) is float


@pytest.mark.parametrize("word", ["off", "no", "on"])
def test_config_o5_a_word_that_yaml_1_1_takes_for_a_boolean_is_a_word(word, written):
    refused(written(f"policy_loss: ppo-clip\nkl: {{use: {word}, coef: 0.1}}\n"), f"No kl is called '{word}'")
    refused(written(f"policy_loss: ppo-clip\nold_log_prob: {word}\n"), f"'{word}' is not one of current and recorded")


def test_config_o5_a_switch_takes_true_false_and_their_words(written):
    for word, value in (("true", True), ("on", True), ("off", False), ("no", False)):
        file = written(f"policy_loss: reinforce\nadvantage: {{use: whiten, unbiased: {word}}}\n")
        assert compose(file).plan.advantages[0].params["unbiased"] is value
    refused(written("policy_loss: reinforce\nadvantage: {use: whiten, unbiased: maybe}\n"), "'maybe' is not true or false")


def test_config_o6_none_is_told_that_it_is_called_null(written):
    refused(written("policy_loss: {use: ppo-clip, log_ratio_bound: None}\n"), "policy_loss.log_ratio_bound", "write null for no value")
    assert params(written("policy_loss: {use: ppo-clip, log_ratio_bound: null}\n"))["log_ratio_bound"] is None


def test_config_o7_a_key_stands_once(written):
    refused(
        written("policy_loss:\n  use: ppo-clip\n  clip_ratio_low: 0.2\n  clip_ratio_low: 0.4\n"), "clip_ratio_low", "line 3", "r.yaml:4:3"
    )


def test_config_o9_the_environment_gives_typed_values(written, monkeypatch):
    file = written("policy_loss: ppo-clip\nadvantage: rloo\ntask: sort-letters\nmodel: {tied: true}\ntrain: {epochs: 1}\n")
    monkeypatch.setenv("LOSSARY_SET__MODEL__TIED", "False")
    monkeypatch.setenv("LOSSARY_SET__TRAIN__EPOCHS", "3")
    settings = Settings.of(load_recipe(file, environment=True))
    assert settings.model.tied is False
    assert (settings.train.epochs, type(settings.train.epochs)) == (3, int)
    monkeypatch.setenv("LOSSARY_SET__MODEL__TIED", "Flase")
    with pytest.raises(RecipeError, match=r"^\$LOSSARY_SET__MODEL__TIED: model.tied: 'Flase' is not true or false$"):
        Settings.of(load_recipe(file, environment=True))


def test_config_o10_a_hyperparameter_of_another_loss_names_this_one_only(written):
    said = refused(written("policy_loss: {use: reinforce, clip_ratio_low: 0.2}\n"), "clip_ratio_low", "reinforce", "It takes none")
    assert not re.search("gspo|ppo|grpo", said)


def test_config_o11_numbers_and_switches_are_not_mixed_up(written):
    refused(written("policy_loss: {use: ppo-clip, clip_ratio_low: true}\n"), "clip_ratio_low: true is not a number")
    assert params(written("policy_loss: {use: ppo-clip, clip_ratio_low: 1}\n"))["clip_ratio_low"] == 1.0
    assert type(params(written("policy_loss: {use: ppo-clip, clip_ratio_low: 1}\n"))["clip_ratio_low"]) is float
    refused(written("policy_loss: reinforce\nadvantage: {use: whiten, unbiased: 1.2}\n"), "unbiased: 1.2 is not true or false")
    refused(written("policy_loss: reinforce\nkl: {use: k3, coef: true}\n"), "kl.coef: true is not a number")
    refused(
        written("policy_loss: reinforce\ntask: sort-letters\ntrain: {epochs: 1.5}\n"), "train.epochs: 1.5 is not an integer", trainer=True
    )
    refused(
        written("policy_loss: reinforce\ntask: sort-letters\ntrain: {epochs: true}\n"), "train.epochs: true is not a number", trainer=True
    )


def test_config_o12_a_misspelt_or_absent_name_is_no_default(written):
    refused(written("policy_loss: {use: ppo_clp}\n"), "ppo_clp", "Did you mean 'ppo-clip'?")
    refused(written("policy_loss: {use: null}\n"), "'use' must name a policy_loss; it is null; known: ", "ppo-clip")
    refused(written("policy_loss: null\n"), "expected the name of a policy_loss, or a mapping with 'use'; it is null")
    refused(written("policy_loss: {clip_ratio_low: 0.2}\n"), "'use' must name a policy_loss")


def test_config_o13_two_losses_and_two_learning_rates_are_four_runs(written):
    """Whole components vary as values of a path: none keeps what belongs to another."""
    file = written("policy_loss: ppo-clip\nadvantage: rloo\ntask: sort-letters\n")
    losses, rates = ("{use: ppo-clip, clip_ratio_low: 0.1}", "reinforce"), ("1e-6", "2e-6")
    runs = [Settings.of(load_recipe(file, [f"policy_loss={loss}", f"train.lr={rate}"])) for loss in losses for rate in rates]
    assert [(r.plan.terms[0].bound.component.name, r.train.lr) for r in runs] == [
        ("ppo-clip", 1e-6), ("ppo-clip", 2e-6), ("reinforce", 1e-6), ("reinforce", 2e-6),
    ]  # fmt: skip
    assert [r.plan.terms[0].bound.params.get("clip_ratio_low") for r in runs] == [0.1, 0.1, None, None]
    assert {type(r.train.lr) for r in runs} == {float}


def test_config_o14_a_number_with_a_letter_is_none(written):
    refused(written("policy_loss: {use: dual-clip, clip_ratio_c: 2.5x}\n"), "clip_ratio_c: '2.5x' is not a number")
    refused(written("policy_loss: reinforce\nkl: {use: k3, coef: 2.5x}\n"), "kl.coef: '2.5x' is not a number")


@pytest.mark.parametrize("text", ["policy_loss: {use: ppo-clip}\n", "policy_loss: ppo-clip\n", "policy_loss: ppo_clip\n"])
def test_config_o15_a_bare_name_has_all_its_defaults(text, written):
    assert params(written(text)) == {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "log_ratio_bound": 20.0}


def test_config_o16_a_misspelt_hyperparameter_has_a_nearest_one(written):
    said = refused(
        written("policy_loss: reinforce\nadvantage: {use: whiten, epslon: 1.0e-4}\n"), "advantage.epslon", "Did you mean 'epsilon'?"
    )
    assert "r.yaml:2:26" in said
    refused(
        written("policy_loss: reinforce\nadvantage:\n  - gae\n  - {use: whiten, esp: 1.0e-4}\n"),
        "advantage.1.esp",
        "epsilon",
        "r.yaml:4:19",
    )


@pytest.mark.parametrize("spelling", ["5e-09", "'5e-09'", "5E-9"])
def test_config_o17_numbers_of_a_plugin_are_numbers_too(spelling, written):
    eps = params(written(f"plugins: [my_losses.py]\npolicy_loss: {{use: tilted, eps: {spelling}}}\n"))["eps"]
    assert eps == 5e-09
    assert type(eps) is float


def test_config_o18_a_misspelt_override_has_a_nearest_one(written):
    file = written("policy_loss: {use: ppo-clip}\n")
    refused(file, "clip_ratio_lo", "Did you mean 'clip_ratio_low'?", overrides=["policy_loss.clip_ratio_lo=0.1"])
    assert params(file, ["policy_loss.clip_ratio_low=0.1"])["clip_ratio_low"] == 0.1
