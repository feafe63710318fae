"""Overrides: values said on the command line, in the environment or in Python; each knows its place, and what is wrong with it says so."""

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lossary import RecipeError, compose, load_recipe
from lossary.pipeline import bundled_recipes
from lossary.registry import Place

BASE = "policy_loss: ppo-clip\nkl: [{use: k3, coef: 0.1}]\n"


def faults(text, tmp_path, overrides=(), environment=False):
    """What is said of a file, without its folder."""
    file = tmp_path / "r.yaml"
    file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        compose(load_recipe(file, overrides, environment=environment))
    return [str(f).replace(f"{tmp_path}/", "") for f in caught.value.faults]


def at(values, path):
    for part in path:
        values = values[part]
    return values


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("policy_loss.clip_ratio_high=0.3", ("policy_loss", "clip_ratio_high"), 0.3),
        ("policy_loss.clip_ratio_high=3e-1", ("policy_loss", "clip_ratio_high"), 0.3),
        (" policy_loss.use = grpo ", ("policy_loss", "use"), "grpo"),
        ("policy_loss=grpo", ("policy_loss",), "grpo"),
        ("kl.0.coef=0.5", ("kl", 0, "coef"), 0.5),
        ("kl.1={use: k2, coef: 1}", ("kl", 1), {"use": "k2", "coef": 1}),
        ("kl.0.coef.use=linear", ("kl", 0, "coef", "use"), "linear"),
        ("kl.0.coef.start = 2 ", ("kl", 0, "coef", "start"), 2),
        ("plugins=[a.py, b.py]", ("plugins",), ["a.py", "b.py"]),
        ("plugins=[]", ("plugins",), []),
        ("advantage.scale=none", ("advantage",), {"use": "grpo", "scale": "none"}),
        ("entropy.coef=1e-3", ("entropy",), {"coef": 0.001}),
        ("train.grad_clip=null", ("train", "grad_clip"), None),
        ("train.grad_clip=~", ("train", "grad_clip"), None),
        ("train.name=a=b", ("train", "name"), "a=b"),
        ("train.name='007'", ("train", "name"), "007"),
        ("train.name=''", ("train", "name"), ""),
        ('train.name="a # b"', ("train", "name"), "a # b"),
        ("train.name=a # b", ("train", "name"), "a # b"),
        ("train.on=off", ("train", "on"), "off"),
        ("train.on=False", ("train", "on"), False),
        ("policy_loss.use=my.module:function", ("policy_loss", "use"), "my.module:function"),
    ],
)
def test_an_override_reaches_its_value(assignment, path, value):
    recipe = {"advantage": "grpo", "policy_loss": "ppo-clip", "kl": [{"use": "k3", "coef": {"start": 1}}, "k1"]}
    loaded = load_recipe(recipe, [assignment])
    found = at(loaded.values, path)
    assert found == value
    assert type(found) is type(value)
    written = tuple(int(p) if p.isdecimal() else p for p in assignment.partition("=")[0].strip().split("."))
    last = len(assignment.partition("=")[0].rstrip()) - len(str(written[-1])) + 1
    assert loaded.document.place(written) == Place(f"override {assignment!r}", 0, last, "override")
    assert recipe["kl"][1] == "k1"  # what was handed in stays as it was


def test_the_parts_of_a_value_have_places_of_their_own():
    document = load_recipe("grpo", ["kl={use: k3, coef: {use: linear, start: 1}}"]).document
    assert [document.place(("kl", *below)).column for below in ((), ("use",), ("coef",), ("coef", "start"))] == [1, 5, 14, 34]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("policy_loss.clip_ratio_hig=0.3", "{}, character 13: policy_loss.clip_ratio_hig: unknown key. Did you mean 'clip_ratio_high'?"),
        ("polcy_loss.clip=1", "{}, character 1: polcy_loss: there is no section 'polcy_loss'. Did you mean 'policy_loss'?"),
        ("polcy_loss=null", "{}, character 1: polcy_loss: there is no section 'polcy_loss'. Did you mean 'policy_loss'?"),
        ("policy_loss", "{}: an override reads a.b=value"),
        ("=1", "{}: an override reads a.b=value"),
        ("policy_loss..use=1", "{}: an override reads a.b=value"),
        ("policy_loss=a\nkl=b", "{}: an override reads a.b=value"),
        ("kl.0.coef=", "{}, character 6: kl.0.coef: no value is given; write null for none, '' for empty text"),
        ("kl.3.coef=1", "{}, character 4: kl.3.coef: the list has no entry '3'; it has 1, counted from 0"),
        ("kl.1=k3", "{}, character 4: kl.1: the list has no entry '1'; it has 1, counted from 0"),
        ("kl.-1.coef=1", "{}, character 4: kl.-1.coef: the list has no entry '-1'; it has 1, counted from 0"),
        ("kl.coef=1", "{}, character 4: kl.coef: the list has no entry 'coef'; it has 1, counted from 0"),
        ("kl.0.coef.use=linear", "{}, character 6: kl.0.coef.use: kl.0.coef is 0.1 and has no parts"),
        ("policy_loss.clip_ratio_low=2", "{}, character 13: policy_loss.clip_ratio_low: 2 is out of bounds"),
        ("policy_loss.0.use=grpo", "{}, character 13: policy_loss.0: unknown key."),
        ("policy_loss={use: ppo-clip", "{}, character 27: policy_loss: no YAML: expected ',' or '}}', but got '<stream end>'"),
        ("policy_loss=[1, 2}", "{}, character 18: policy_loss: no YAML: expected ',' or ']', but got '}}'"),
        ("policy_loss={use: a, use: b}", "{}, character 22: policy_loss.use: the key 'use' stands here again"),
        ("policy_loss={use: ppo-clip, clip: 1}", "{}, character 29: policy_loss.clip: unknown key."),
        ("policy_loss='ppo", "{}, character 17: policy_loss: no YAML: found unexpected end of stream"),
        ("policy_loss='use': grpo", "{}, character 13: policy_loss: a mapping stands in braces, as in {{use: k3, coef: 0.1}}"),
        ("policy_loss='grpo' # mine", "{}, character 19: policy_loss: what stands after the value would be lost"),
        ("policy_loss.clip_ratio_low=0.1 # mine", "{}, character 13: policy_loss.clip_ratio_low: '0.1 # mine' is not a number"),
        ("kl.²=1", "{}, character 4: kl.²: the list has no entry '²'; it has 1, counted from 0"),
        ("kl.0.use=!!python/name:os.system", "{}, character 6: kl.0.use: '!!python/name:os.system': '!!python/name' is no module's name"),
        ("kl={use: !!python/name:os.system k3}", "{}, character 5: kl.use: the tag 'tag:yaml.org,2002:python/name:os.system' is not read"),
    ],
)  # fmt: skip
def test_an_override_that_is_wrong_names_itself_and_the_character(assignment, expected, tmp_path):
    (said,) = faults(BASE, tmp_path, [assignment])
    assert said.startswith(expected.format(f"override {assignment!r}"))


def test_an_override_takes_the_place_of_what_it_replaces(tmp_path):
    """A fault in a replaced value is the override's, and one beside it keeps the place in the file."""
    said = faults("policy_loss:\n  use: ppo-clip\n  clip_ratio_low: 3\n  clip_ratio_high: -1\n", tmp_path, ["policy_loss.clip_ratio_low=4"])
    assert [s.partition(": ")[0] for s in said] == ["r.yaml:4:3", "override 'policy_loss.clip_ratio_low=4', character 13"]


def test_null_takes_a_section_out_and_a_file_cannot_say_that(tmp_path):
    assert "kl" not in load_recipe({"policy_loss": "grpo", "kl": {"use": "k3", "coef": 1}}, ["kl=null", "entropy=null"]).values
    assert "kl" not in load_recipe({"policy_loss": "grpo", "kl": "k3"}, {"kl": None}).values
    assert faults(BASE + "entropy: null\n", tmp_path)[0].startswith("r.yaml:3:1: entropy.coef: required")
    assert faults(BASE, tmp_path, ["policy_loss=null", "kl=null"]) == [
        "r.yaml:1:1: nothing to learn from: a recipe needs policy_loss, auxiliary or value_loss."
    ]


def test_later_overrides_win_and_a_whole_component_takes_its_keys_with_it():
    last = load_recipe("dapo", ["policy_loss.clip_ratio_low=0.1", "policy_loss={use: gspo}", "policy_loss.clip_ratio_high=1e-3"])
    assert last.values["policy_loss"] == {"use": "gspo", "clip_ratio_high": 1e-3}


def test_python_says_values_as_they_are():
    def mine(log_prob, advantages):
        return -log_prob * advantages

    recipe = load_recipe("dapo", {"policy_loss": mine, "kl": {"use": "k3", "coef": 0.5}, "kl.coef": 0.1, "train.betas": (0.9, 0.95)})
    assert compose(recipe).plan.terms[1].coefficient.fixed == 0.1
    assert recipe.values["train"]["betas"] == [0.9, 0.95]
    assert recipe.document.place(("kl", "coef")) == Place("override 'kl.coef'", origin="override")
    with pytest.raises(RecipeError, match=r"^override 'kl\.ceof': kl\.ceof: unknown key\. Did you mean 'coef'\?"):
        compose("dapo", {"kl": {"use": "k3", "coef": 0.5}, "kl.ceof": 0.1})
    with pytest.raises(RecipeError, match=r"^override 'kl\.': the path of an override reads a\.b"):
        compose("dapo", {"kl.": 0.1})
    with pytest.raises(RecipeError, match=r"^override 'kl': kl: the key 3 is no text"):
        compose("dapo", {"kl": {3: 1, "use": "k3", "coef": 1}})


def test_one_text_is_one_override():
    assert compose("dapo", "policy_loss.clip_ratio_high=0.3").plan.terms[0].bound.params["clip_ratio_high"] == 0.3


SAYABLE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab :#{}[]'\"\\,0.é", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(SAYABLE)
def test_what_is_written_as_yaml_on_a_line_comes_back(value):
    text = yaml.safe_dump([value], default_flow_style=True, width=10**6, allow_unicode=True).strip()[1:-1]
    found = load_recipe({"a": {}}, [f"a.b={text}"])
    assert found.document.faults == []
    assert found.values["a"]["b"] == value


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("POLICY_LOSS__CLIP_RATIO_HIGH", "0.3", ("policy_loss", "clip_ratio_high"), 0.3),
        ("policy_loss__clip_ratio_high", "3e-1", ("policy_loss", "clip_ratio_high"), 0.3),
        ("POLICY_LOSS", "gspo", ("policy_loss",), "gspo"),
        ("KL__0__COEF", "1", ("kl", 0, "coef"), 1),
        ("KL__0", "{use: k2, coef: 0.2}", ("kl", 0), {"use": "k2", "coef": 0.2}),
        ("TRAIN__GRAD_CLIP", "null", ("train", "grad_clip"), None),
        ("TRAIN__TIED", "False", ("train", "tied"), False),
    ],
)
def test_a_variable_reaches_its_value(name, text, path, value):
    recipe = {"policy_loss": "ppo-clip", "kl": [{"use": "k3", "coef": 0.1}]}
    variables = {f"LOSSARY_SET__{name}": text, "PATH": "/", "LOSSARY_BLOCK": "x"}
    loaded = load_recipe(recipe, environment=variables)
    assert at(loaded.values, path) == value
    assert loaded.document.faults == []
    assert loaded.document.place(path) == Place(f"$LOSSARY_SET__{name}", origin="environment")
    assert load_recipe(recipe).values == recipe  # nobody looks there unasked


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"POLICY_LOSS__CLIP_RATIO_HIG": "0.3"}, "$LOSSARY_SET__POLICY_LOSS__CLIP_RATIO_HIG: policy_loss.clip_ratio_hig: unknown key. Did you mean 'clip_ratio_high'?"),
        ({"POLCY_LOSS__USE": "grpo"}, "$LOSSARY_SET__POLCY_LOSS__USE: polcy_loss: there is no section 'polcy_loss'. Did you mean 'policy_loss'?"),
        ({"POLICY_LOSS_CLIP_RATIO_HIGH": "0.3"}, "$LOSSARY_SET__POLICY_LOSS_CLIP_RATIO_HIGH: policy_loss_clip_ratio_high: there is no section"),
        ({"POLICY_LOSS__CLIP_RATIO_HIGH": "much"}, "$LOSSARY_SET__POLICY_LOSS__CLIP_RATIO_HIGH: policy_loss.clip_ratio_high: 'much' is not a number"),
        ({"KL__0__COEF": ""}, "$LOSSARY_SET__KL__0__COEF: kl.0.coef: no value is given; write null for none, '' for empty text"),
        ({"KL__0__COEF": "1\n2"}, "$LOSSARY_SET__KL__0__COEF: kl.0.coef: a value stands on one line"),
        ({"KL__7": "k3"}, "$LOSSARY_SET__KL__7: kl.7: the list has no entry '7'; it has 1, counted from 0"),
        ({"KL__0": "{use: k3, coef: high}"}, "$LOSSARY_SET__KL__0, character 11: kl.0.coef: 'high' is not a number"),
        ({"KL__0": "{use: k3"}, "$LOSSARY_SET__KL__0, character 9: kl.0: no YAML: expected ',' or '}'"),
        ({"": "1"}, "$LOSSARY_SET__: a setting in the environment is called LOSSARY_SET__SECTION__KEY"),
        ({"KL____COEF": "1"}, "$LOSSARY_SET__KL____COEF: a setting in the environment is called LOSSARY_SET__SECTION__KEY"),
        ({"EMPTY": "drop", "empty": "count"}, "$LOSSARY_SET__empty: empty: $LOSSARY_SET__EMPTY says the same key"),
    ],
)  # fmt: skip
def test_a_variable_that_is_wrong_is_named(variables, expected, tmp_path):
    said = faults(BASE, tmp_path, environment={f"LOSSARY_SET__{name}": text for name, text in variables.items()})
    assert [s.startswith(expected) for s in said] == [True], said


@pytest.mark.parametrize("name", ["LOSSARY_SET", "LOSSARY_SET_KL", "lossary_set__kl", "LOSSARY_SETKL"])
def test_a_variable_that_is_nearly_a_setting_is_not_passed_over(name, tmp_path):
    (said,) = faults(BASE, tmp_path, environment={name: "1"})
    assert said.startswith(f"${name}: a setting in the environment is called LOSSARY_SET__SECTION__KEY")


def test_the_whole_is_set_before_its_parts():
    variables = {"LOSSARY_SET__KL__COEF": "0.5", "LOSSARY_SET__KL": "{use: k3, coef: 0.1}"}
    assert load_recipe("dapo", environment=variables).values["kl"] == {"use": "k3", "coef": 0.5}


def test_the_recipe_yields_to_the_environment_and_that_to_an_override(tmp_path, monkeypatch):
    file = tmp_path / "r.yaml"
    file.write_text("policy_loss: {use: ppo-clip, clip_ratio_low: 0.1, clip_ratio_high: 0.1, log_ratio_bound: 1}\n")
    monkeypatch.setenv("LOSSARY_SET__POLICY_LOSS__CLIP_RATIO_HIGH", "0.2")
    monkeypatch.setenv("LOSSARY_SET__POLICY_LOSS__LOG_RATIO_BOUND", "2")
    recipe = load_recipe(file, ["policy_loss.log_ratio_bound=3"], environment=True)
    assert dict(compose(recipe).plan.terms[0].bound.params) == {"clip_ratio_low": 0.1, "clip_ratio_high": 0.2, "log_ratio_bound": 3.0}
    assert [recipe.document.place(("policy_loss", key)).origin for key in ("clip_ratio_low", "clip_ratio_high", "log_ratio_bound")] == [
        "file", "environment", "override",
    ]  # fmt: skip
    assert compose(file).plan.terms[0].bound.params["clip_ratio_high"] == 0.1  # Python does not look unasked


def test_faults_of_file_environment_and_override_come_at_once(tmp_path):
    said = faults(BASE + "empty: keep\n", tmp_path, ["kl.0.coef=x", "kl.0.cap=-"], {"LOSSARY_SET__POLICY_LOSS": "pp"})
    assert sorted(s.partition(": ")[0] for s in said) == [
        "$LOSSARY_SET__POLICY_LOSS", "override 'kl.0.cap=-', character 6", "override 'kl.0.coef=x', character 6", "r.yaml:3:1",
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_value_of_a_bundled_recipe_may_be_said_in_the_environment(name):
    """Whole sections as variables are the recipe itself."""
    recipe = load_recipe(name)
    variables = {
        f"LOSSARY_SET__{k.upper()}": yaml.safe_dump([v], default_flow_style=True, width=10**6).strip()[1:-1]
        for k, v in recipe.values.items()
    }
    assert load_recipe({}, environment=variables).values == recipe.values


def test_what_is_set_below_a_components_name_is_told_at_the_one_who_set_it(tmp_path):
    said = faults(BASE.replace("[{use: k3, coef: 0.1}]", "{use: k3, coef: 0.1}"), tmp_path, environment={"LOSSARY_SET__KL__USE__X": "3"})
    assert said == ["$LOSSARY_SET__KL__USE__X: kl.use.x: kl.use is 'k3' and has no parts"]


@pytest.mark.parametrize(
    "text", ["a" * 3000 + "=1", "kl.0.coef=" + "a" * 3000, "kl.0.use=" + "a" * 3000, "kl.0.use=[" + "a, " * 3000 + "a]"]
)
def test_what_is_long_is_not_repeated_at_length(tmp_path, text):
    (said,) = faults(BASE, tmp_path, [text])
    assert len(said) < 700
    assert "aaa..." in said or "a, ..." in said or "'a'..." in said or "'..." in said


def test_a_value_that_aliases_multiplied_is_not_repeated_at_length(tmp_path):
    nine = "[" + ", ".join(["x"] * 9) + "]"
    lines = [
        f"advantage: &a {nine}",
        *(f"{key}: &{key[0]}x [{', '.join([f'*{below}'] * 9)}]" for key, below in (("kl", "a"), ("filter", "kx"), ("policy_loss", "fx"))),
    ]
    said = faults("\n".join(lines) + "\n", tmp_path)
    assert said
    assert max(map(len, said)) < 700
