"""``lossary schema``: what an editor is told agrees with what ``check`` says."""

import json
from typing import Annotated

import pytest
from commands import run
from example import recipe_of
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

import lossary
from lossary import PerToken, UnknownName, policy_loss
from lossary.cli.schema import TRAINING
from lossary.pipeline import bundled_recipes, load_recipe, read_yaml, survey
from lossary.pipeline.schema import component_schema, recipe_schema
from lossary.registry import LossaryError, bounds_of
from lossary.trainer.settings import Settings

OURS = [c for c in lossary.catalog() if c.distribution == "lossary"]
TRAINED = "policy_loss: grpo\nadvantage: grpo\ntask: sort-letters\n"


@pytest.fixture(scope="module")
def whole():
    schema = recipe_schema(lossary.catalog(), TRAINING)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(json.loads(json.dumps(schema, allow_nan=False)))


def complaints(validator, values):
    return [f"{'.'.join(map(str, e.path))}: {e.message}" for e in validator.iter_errors(values)]


def values(text):
    document = read_yaml(text, "r.yaml")
    assert document.faults == []
    return document.values


def refused_by_check(text):
    recipe = load_recipe(values(text))
    try:
        return bool(survey(recipe, lossary.catalog())[2]) if "task" not in recipe.values else not Settings.of(recipe)
    except LossaryError:
        return True


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_bundled_recipe_is_right(name, whole):
    assert complaints(whole, values(bundled_recipes()[name])) == []


@pytest.mark.parametrize("c", OURS, ids=lambda c: f"{c.kind.name}-{c.name}")
def test_the_recipe_of_every_component_is_right_and_a_misspelt_key_of_it_is_not(c, whole):
    recipe = values(recipe_of(c))
    assert complaints(whole, recipe) == []
    alone = component_schema(c, lossary.catalog())
    Draft202012Validator.check_schema(alone)
    for name, kind, _, default, meaning in bounds_of(c.params):
        field = alone["properties"][name]
        assert field.get("description", "") == meaning
        assert ("default" in field) is (default != "required"), (name, kind)
    assert {c.name, *c.aliases} <= set(alone["properties"]["use"]["enum"])
    slot = {"use": c.name, **dict.fromkeys(alone["required"], 1), "nobody": 1}
    assert any("nobody" in e.message for e in Draft202012Validator(alone).iter_errors(slot))


@pytest.mark.parametrize(
    "text",
    [
        "policy_loss: vanilla", "policy_loss: ppo_clip", "policy_loss: {use: my_pkg.losses:tilted, anything: 1}", "policy_loss: {use: lossary/ppo-clip, clip_ratio_low: 0.1}",
        "auxiliary: {use: sft, coef: 0.1}", "value_loss: clipped-mse", "policy_loss: grpo\nadvantage: [gae, whiten]", "policy_loss: grpo\nentropy: 0.01",
        "policy_loss: grpo\nkl: [{use: k3, coef: 1}, {use: k1, coef: {use: linear, start: 1, end: 0, steps: 3}, apply: reward}]",
        "base: grpo", "base: grpo\nkl: null", "base: mine.yaml\npolicy_loss: {clip_ratio_low: 0.1}", "policy_loss: grpo\nold_log_prob: current\nempty: count",
        "policy_loss: {use: grpo, log_ratio_bound: null, aggregation: {use: length-power, exponent: 0.5}}", TRAINED + "train: {lr: 1e-3, betas: [0.9, 0.95]}",
    ],
)  # fmt: skip
def test_what_may_be_written_is_right(text, whole):
    assert complaints(whole, values(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        # names
        "policy_loss: ppo-clp", "policy_loss: {use: ppo-clp}", "policy_loss: k3", "policy_loss: null", "policy_loss: {use: null}", "policy_loss: 3", "polcy_loss: ppo-clip",
        "policy_loss: [grpo]", "policy_loss: {clip_ratio_low: 0.1}", "policy_loss: grpo\naggregation: token-meen", "policy_loss: {use: grpo, aggregation: mean}",
        # hyperparameters
        "policy_loss: {use: ppo-clip, clip_ratio_hig: 0.3}", "policy_loss: {use: ppo-clip, clip-ratio-high: 0.3}", "policy_loss: {use: ppo-clip, clip_ratio_low: 2}",
        "policy_loss: {use: ppo-clip, clip_ratio_low: true}", "policy_loss: {use: ppo-clip, clip_ratio_low: null}", "policy_loss: {use: ppo-clip, clip_ratio_low: 0.2x}",
        "policy_loss: {use: ppo-clip, log_ratio_bound: None}", "policy_loss: {use: ppo-clip, lam: 0.9}", "policy_loss: grpo\nadvantage: {use: grpo, scale: groop}",
        "policy_loss: {use: grpo, aggregation: {use: token-mean, x: 1}}", "policy_loss: grpo\nreward: overlong",
        # keys of sections
        "kl: {use: k3, coef: 1}", "policy_loss: grpo\nkl: k3", "policy_loss: grpo\nkl: {use: k3}", "policy_loss: grpo\nkl: {use: k3, coef: much}", "policy_loss: {use: grpo, apply: loss}",
        "policy_loss: grpo\nkl: {use: k3, coef: {use: linear}}", "policy_loss: grpo\nkl: {use: k3, coef: linear}", "policy_loss: grpo\nkl: {use: k3, coef: 1, apply: both}",
        "policy_loss: grpo\nkl: {use: k3, coef: 1, apply: reward, aggregation: token-mean}", "policy_loss: grpo\ncorrection: masked-is", "policy_loss: grpo\ncorrection: {use: truncated-is, denominator: kept}",
        "policy_loss: grpo\nentropy: {use: entropy, coef: 1}", "policy_loss: grpo\nentropy: {}", "policy_loss: grpo\nentropy: null", "policy_loss: grpo\nvalue_loss: null",
        "policy_loss: grpo\nadvantage: []", "policy_loss: grpo\nplugins: x.py", "policy_loss: grpo\nempty: keep", "policy_loss: grpo\ncompile: 1", "policy_loss: grpo\nbase: 3",
        # the trainer's
        TRAINED + "train: {lr: -1}", TRAINED + "train: {lrr: 1}", TRAINED + "train: {epochs: 1.5}", TRAINED + "train: {betas: [0.9]}", TRAINED + "model: {tied: maybe}",
        "policy_loss: grpo\nadvantage: grpo\ntask: sort-lettres", "policy_loss: grpo\nadvantage: grpo\ntask: {use: sort-letters, letter: 3}",
    ],
)  # fmt: skip
def test_what_check_refuses_an_editor_marks(text, whole):
    assert complaints(whole, values(text)) != []
    assert refused_by_check(text)


def test_a_strangers_component_is_in_it_whatever_its_types_are():
    class Inner(BaseModel):
        depth: Annotated[int, Field(gt=0)] = 1

    def strange(log_prob: PerToken, *, inner: Inner = Inner(), tilt: Annotated[float, Field(gt=0), "how steep"] = 1.0) -> PerToken:  # noqa: B008
        """Strange."""
        return log_prob * tilt

    made = component_schema(next(iter(lossary.Catalog().extended([policy_loss(strange)]))), lossary.catalog())
    validator = Draft202012Validator(made)
    assert complaints(validator, {"use": "strange", "inner": {"depth": 2}, "tilt": 0.5}) == []
    assert [c.partition(":")[0] for c in complaints(validator, {"use": "strange", "inner": {"depth": 0}, "tilt": 0})] == [
        "inner.depth",
        "tilt",
    ]
    assert made["properties"]["tilt"]["description"] == "how steep"


def test_the_command_prints_one_or_all():
    code, out, _ = run("schema")
    assert (code, json.loads(out)["$schema"]) == (0, "https://json-schema.org/draft/2020-12/schema")
    assert json.loads(run("schema", "kl/k3")[1])["properties"]["apply"]["enum"] == ["loss", "reward"]
    assert json.loads(run("schema", "low_var_kl")[1])["title"] == "kl k3"
    for name, say in {
        "grpo": "say advantage/grpo and policy_loss/grpo",
        "k33": "Did you mean 'k3'",
        "kl/grpo": "No kl is called 'grpo'",
    }.items():
        with pytest.raises(UnknownName, match=say):
            run("schema", name)


def test_the_plugins_of_a_recipe_are_in_its_schema(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from lossary import PerToken, policy_loss\n\n@policy_loss\ndef tilted(log_prob: PerToken, *, tilt: float = 1.0) -> PerToken:\n"
        '    """Tilt."""\n    return tilt * log_prob\n'
    )
    (tmp_path / "r.yaml").write_text("plugins: [mine.py]\npolicy_loss: {use: tilted, tilt: 2}\n")
    recipe = values((tmp_path / "r.yaml").read_text())
    mine = Draft202012Validator(json.loads(run("schema", "--recipe", str(tmp_path / "r.yaml"))[1]))
    assert complaints(mine, recipe) == []
    assert complaints(Draft202012Validator(json.loads(run("schema")[1])), recipe) != []
    (tmp_path / "r.yaml").write_text("plugins: [gone.py]\npolicy_loss: tilted\n")
    with pytest.raises(lossary.RecipeError, match="there is no file"):
        run("schema", "--recipe", str(tmp_path / "r.yaml"))
