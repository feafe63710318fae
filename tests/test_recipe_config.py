"""Known faults of configuration, in the words of our recipes: each by its number."""

import re

import pytest

from lossary import RecipeError, compose, load_recipe
from lossary.trainer.settings import Settings

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
