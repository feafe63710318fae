"""A recipe on a base: what it keeps, changes, replaces and takes out, and where each value comes from."""

import os

import pytest

from lossary import RecipeError, compose, load_recipe
from lossary.pipeline import bundled_recipes

BELOW = """\
advantage: [gae, whiten]
policy_loss: ppo-clip
kl: {use: k3, coef: {use: linear, start: 0.1, end: 0.0, steps: 10}}
entropy: {coef: 0.01, aggregation: token-mean}
train: {steps: 5, lr: 1e-3}
"""


@pytest.fixture
def on(tmp_path):
    """Write a recipe upon ``below.yaml`` and load it."""

    def load(text, **others):
        for name, content in {"below": BELOW, **others}.items():
            (tmp_path / f"{name}.yaml").write_text(content)
        (tmp_path / "r.yaml").write_text(text)
        return load_recipe(tmp_path / "r.yaml")

    return load


@pytest.mark.parametrize(
    ("text", "section", "value"),
    [
        ("", "policy_loss", "ppo-clip"),
        # a mapping without 'use' changes
        ("policy_loss: {clip_ratio_high: 0.3}", "policy_loss", {"use": "ppo-clip", "clip_ratio_high": 0.3}),
        ("train: {lr: 1e-4}", "train", {"steps": 5, "lr": 1e-4}),
        ("kl: {coef: {start: 0.2}}", "kl", {"use": "k3", "coef": {"use": "linear", "start": 0.2, "end": 0.0, "steps": 10}}),
        ("entropy: {coef: 0}", "entropy", {"coef": 0, "aggregation": "token-mean"}),
        # anything else replaces
        ("policy_loss: {use: gspo}", "policy_loss", {"use": "gspo"}),
        ("kl: {use: k2, coef: 1}", "kl", {"use": "k2", "coef": 1}),
        ("kl: {coef: 1}", "kl", {"use": "k3", "coef": 1}),
        ("advantage: grpo", "advantage", "grpo"),
        ("advantage: [grpo]", "advantage", ["grpo"]),
        ("advantage: {use: grpo}", "advantage", {"use": "grpo"}),
        # null takes out
        ("kl: null", "kl", None),
        ("empty: count", "empty", "count"),
    ],
)
def test_what_stands_here_changes_or_replaces_what_stands_there(text, section, value, on):
    recipe = on(f"base: below.yaml\n{text}\n")
    assert recipe.document.faults == []
    assert recipe.values.get(section) == value
    assert "base" not in recipe.values
    assert (section in recipe.values) is (value is not None)


def test_each_value_knows_the_file_it_comes_from(on):
    document = on("base: below.yaml\npolicy_loss: {clip_ratio_high: 0.3}\nkl: {coef: {start: 0.2}}\n").document

    def said(*path):
        place = document.place(path)
        return f"{place.origin} {place.source.rpartition('/')[2]}:{place.line}:{place.column}"

    assert said("policy_loss", "use") == "base below.yaml:2:1"
    assert said("policy_loss", "clip_ratio_high") == "file r.yaml:2:15"
    assert said("kl", "coef", "start") == "file r.yaml:3:13"
    assert said("kl", "coef", "end") == "base below.yaml:3:47"


def test_config_o8_a_chosen_loss_has_none_of_the_settings_of_the_default_one(on):
    recipe = on(
        "base: low.yaml\npolicy_loss: {use: reinforce}\n", low="policy_loss: {use: ppo-clip, clip_ratio_low: 0.2, clip_ratio_high: 0.2}\n"
    )
    (term,) = compose(recipe).plan.terms
    assert (term.bound.component.name, term.bound.params) == ("reinforce", {})
    (term,) = compose(load_recipe({"policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.2}}, ["policy_loss=reinforce"])).plan.terms
    assert (term.bound.component.name, term.bound.params) == ("reinforce", {})
    with pytest.raises(RecipeError, match="clip_ratio_low: unknown key"):  # the name alone was changed: nothing is dropped unsaid
        compose({"policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.2}}, ["policy_loss.use=reinforce"])


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_a_bundled_recipe_is_a_base(name):
    assert load_recipe({"base": name}).values == load_recipe(name).values


def test_bases_stand_on_bases_and_bring_their_plugins(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "mine.py").write_text(
        "from lossary import PerToken, policy_loss\n\n@policy_loss\ndef mine(log_prob: PerToken, *, c: float = 1.0) -> PerToken:\n"
        '    """Mine."""\n    return c * log_prob\n'
    )
    (tmp_path / "deep" / "low.yaml").write_text("plugins: [mine.py]\npolicy_loss: mine\n")
    (tmp_path / "mid.yaml").write_text("base: deep/low.yaml\npolicy_loss: {c: 2.0}\n")
    (tmp_path / "r.yaml").write_text("base: mid.yaml\nkl: {use: k3, coef: 0.1}\n")
    plan = compose(tmp_path / "r.yaml").plan
    assert [(t.bound.component.name, t.bound.params.get("c")) for t in plan.terms] == [("mine", 2.0), ("k3", None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("base: belw.yaml", "r.yaml:1:1: base: belw.yaml: there is no such file. Did you mean 'below.yaml'?"),
        ("base: grop", "r.yaml:1:1: base: 'grop': no recipe has this name. Did you mean 'grpo'?"),
        ("base: 3", "r.yaml:1:1: base: expected the name of a recipe or a file beside this one; it is 3"),
        ("base: [grpo, dapo]", "r.yaml:1:1: base: expected the name of a recipe or a file beside this one; it is a list"),
        ("base: null", "r.yaml:1:1: base: expected the name of a recipe or a file beside this one; it is nothing"),
        ("base: ../r.yaml", "r.yaml:1:1: base: '../r.yaml' leaves the recipe's folder; a base stands beside its recipe or below it"),
        ("base: /etc/r.yaml", "r.yaml:1:1: base: '/etc/r.yaml' leaves the recipe's folder"),
        ("base: r.yaml", "r.yaml:1:1: base: 'r.yaml' builds on itself"),
        ("base: broken.yaml", "broken.yaml:2:3: policy_loss.clip: unknown key."),
        ("base: torn.yaml", "torn.yaml:2:1: no YAML"),
        ("bas: grpo\npolicy_loss: grpo", "r.yaml:1:1: bas: there is no section 'bas'. Did you mean 'base'?"),
    ],
)
def test_what_is_wrong_with_a_base(text, expected, on, tmp_path):
    recipe = on(f"{text}\n", broken="policy_loss:\n  clip: 1\n  use: ppo-clip\n", torn="policy_loss: {\n")
    with pytest.raises(RecipeError) as caught:
        compose(recipe)
    said = [str(f).replace(f"{tmp_path}/", "") for f in caught.value.faults]
    assert any(s.startswith(expected) for s in said), said


def test_a_base_cannot_be_set_from_outside():
    with pytest.raises(RecipeError, match="base: a base is named in the recipe itself"):
        compose("dapo", ["base=grpo"])


def test_a_base_behind_a_link_out_of_the_folder_is_refused_as_a_plugin_is(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "outside.yaml").write_text("policy_loss: ppo-clip\n")
    (home / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    (home / "linked").symlink_to(tmp_path)
    (home / "within.yaml").write_text("policy_loss: ppo-clip\n")
    (home / "near.yaml").symlink_to(home / "within.yaml")
    for name in ("link.yaml", "linked/outside.yaml"):
        (home / "r.yaml").write_text(f"base: {name}\n")
        with pytest.raises(RecipeError, match=f"'{name}' leaves the recipe's folder"):
            compose(home / "r.yaml")
    (home / "r.yaml").write_text("base: near.yaml\n")
    assert compose(home / "r.yaml").plan.terms[0].bound.component.name == "ppo-clip"


@pytest.mark.parametrize("suffix", ["", ".yaml"])
def test_a_recipe_is_read_from_a_file_and_from_nothing_else(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    for said in (tmp_path / f"pipe{suffix}", "/dev/null"):
        with pytest.raises(RecipeError, match="is no ordinary file but a pipe or a device"):
            compose(said)
