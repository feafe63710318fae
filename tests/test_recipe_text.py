"""A recipe as text: every value has a place, and whatever is wrong with the text is said at once, in the order of its lines."""

import pytest

from lossary import RecipeError, compose, load_recipe
from lossary.pipeline import bundled_recipes, read_yaml, scalar
from lossary.registry import Place

GOOD = "policy_loss: ppo-clip\n"


def faults(text, tmp_path, overrides=()):
    """What compose says of a file, without its folder."""
    file = tmp_path / "r.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RecipeError) as caught:
        compose(file, overrides)
    return [str(f).replace(f"{tmp_path}/", "") for f in caught.value.faults]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the text itself
        ("policy_loss: {use: ppo-clip", "r.yaml:1:28: no YAML: expected ',' or '}', but got '<stream end>'"),
        ("policy_loss:\n\tuse: ppo-clip\n", "r.yaml:2:1: no YAML: found character '\\t' that cannot start any token"),
        ("a: b: c\n", "r.yaml:1:5: no YAML: mapping values are not allowed here"),
        ("policy_loss: *gone\n", "r.yaml:1:14: no YAML: found undefined alias 'gone'"),
        (GOOD + "---\n" + GOOD, "r.yaml:2:1: no YAML: but found another document"),
        (GOOD + "kl: k\0\n", "r.yaml:2:6: no YAML: the character '\\x00' is not allowed"),
        # what a mapping may hold
        (GOOD + GOOD, "r.yaml:2:1: policy_loss: the key 'policy_loss' stands here again; first on line 1"),
        ("policy_loss: {use: ppo-clip, use: grpo}\n", "r.yaml:1:30: policy_loss.use: the key 'use' stands here again; first on line 1"),
        (
            "kl: &b {use: k3, coef: 1}\npolicy_loss:\n  use: grpo\n  <<: *b\n",
            "r.yaml:4:3: policy_loss: a key must be a plain word; merge keys (<<) are not read",
        ),
        (GOOD + "? [a, b]\n: 1\n", "r.yaml:2:3: a key must be a plain word; merge keys (<<) are not read"),
        (GOOD + "kl: &a [*a]\n", "r.yaml:2:5: kl.0: an alias that contains itself"),
        # tags
        (GOOD + "kl: {use: k3, coef: !!int 1.5}\n", "r.yaml:2:15: kl.coef: '1.5' is no int"),
        (GOOD + "kl: {use: k3, coef: !!bool maybe}\n", "r.yaml:2:15: kl.coef: 'maybe' is no bool"),
        (GOOD + "kl: {use: !mine k3, coef: 1}\n", "r.yaml:2:6: kl.use: the tag '!mine' is not read"),
        (
            GOOD + "kl: !!python/object:os.system {use: k3, coef: 1}\n",
            "r.yaml:2:1: kl: the tag 'tag:yaml.org,2002:python/object:os.system' is not read",
        ),
        # the top
        ("", "r.yaml: nothing to learn from: a recipe needs policy_loss, auxiliary or value_loss."),
        ("# nothing\n", "r.yaml: nothing to learn from: a recipe needs policy_loss, auxiliary or value_loss."),
        ("- policy_loss\n", "r.yaml:1:1: a recipe is a mapping of sections; this is a list"),
        ("ppo-clip\n", "r.yaml:1:1: a recipe is a mapping of sections; this is 'ppo-clip'"),
        ("null\n", "r.yaml:1:1: a recipe is a mapping of sections; this is nothing"),
        # sections
        ("policy_los: ppo-clip\n" + GOOD, "r.yaml:1:1: policy_los: there is no section 'policy_los'. Did you mean 'policy_loss'?"),
        ("task: {use: sort-letters}\n", "r.yaml:1:1: nothing to learn from: a recipe needs policy_loss, auxiliary or value_loss."),
    ],
)
def test_a_fault_of_the_text_has_its_place_and_stands_alone(text, expected, tmp_path):
    assert faults(text, tmp_path)[0].startswith(expected)
    assert len(faults(text, tmp_path)) == 1


def test_a_file_that_is_no_text_is_refused(tmp_path):
    said = faults(b"\xff\xfe\x00policy", tmp_path)
    assert said == ["r.yaml: cannot be read: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"]


def test_an_unknown_section_that_is_near_nothing_lists_them_all(tmp_path):
    (said,) = faults("zzzzzz: 1\n" + GOOD, tmp_path)
    assert said.startswith("r.yaml:1:1: zzzzzz: there is no section 'zzzzzz'. Sections are advantage, aggregation, ")
    assert "old_log_prob, plugins and" not in said
    assert said.endswith("value_loss and warm_up.")


def test_all_faults_come_at_once_in_the_order_of_their_lines(tmp_path):
    text = """\
aggregation: token-meen
policy_loss:
  use: ppo-clip
  clip_ratio_hihg: 0.28
  clip_ratio_low: 1.5
kl: {use: k9, coef: 0.1, apply: loss}
kl: {use: k3, coef: 1}
entropy: {coef: high}
value_loss: clipped-mse
advantages: gae
empty: keep
old_log_prob: recordet
"""
    said = faults(text, tmp_path)
    assert [s.partition(": ")[0] for s in said] == [
        f"r.yaml:{p}" for p in ("1:1", "4:3", "5:3", "6:6", "7:1", "8:11", "10:1", "11:1", "12:1")
    ]
    for sentence, words in zip(
        said,
        ["token-mean", "clip_ratio_high", "<= 1", "k9", "line 6", "'high' is not a number", "advantage", "count", "recorded"],
        strict=True,
    ):
        assert words in sentence


def test_an_unknown_component_is_one_fault(tmp_path):
    """What stands beside the name is read all the same: no follow-up says that the coefficient is missing."""
    (said,) = faults(GOOD + "kl: {use: k33, coef: 0.1, apply: loss, aggregation: token-mean}\n", tmp_path)
    assert said.startswith("r.yaml:2:6: kl.use: No kl is called 'k33'. Did you mean 'k3'?")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-6", 1e-6), ("1E-6", 1e-6), ("1.0e-6", 1e-6), ("+1e+3", 1000.0), (".5", 0.5), ("1.", 1.0), ("010", 10), ("0x10", 16),
        ("0o10", 8), ("-3", -3), ("+5", 5), ("0b11", "0b11"), ("1_000", "1_000"), ("1:30", "1:30"), ("2024-01-01", "2024-01-01"),
        ("on", "on"), ("off", "off"), ("yes", "yes"), ("no", "no"), ("y", "y"), ("true", True), ("False", False), ("TRUE", True),
        ("null", None), ("~", None), ("", None), ("None", "None"), ("'1e-6'", "1e-6"), ("'null'", "null"), (".inf", float("inf")),
        ("-.INF", float("-inf")), ("inf", "inf"), ("nan", "nan"), ("[1, a]", [1, "a"]), ("{a: [on]}", {"a": ["on"]}), ("=", "="),
        ("[1, 2", "[1, 2"), ("a: b", "a: b"), ("!!str 5", "!!str 5"), ("1 # one", "1 # one"), ("&a 1", "&a 1"), ("*a", "*a"), ("|", "|"), (">", ">"),
        ("- 1", "- 1"), ("---", "---"), ("%YAML", "%YAML"), ("12:30:45", "12:30:45"), ("0777", 777), ("0o777", 511), ("<<", "<<"), ("  7 ", 7), ("\"a\\tb\"", "a\tb"),
        ("9" * 5000, "9" * 5000),
    ],
)  # fmt: skip
def test_scalars_are_those_of_yaml_1_2(text, value):
    got = scalar(text)
    assert got == value
    assert type(got) is type(value)


@pytest.mark.parametrize(
    ("value", "say"),
    [
        ("12:30", "'12:30' is not a number"),
        ("2024-01-01", "'2024-01-01' is not a number"),
        (".inf", "inf is not a finite number"),
        (".nan", "nan is not a finite number"),
        ("1_000", "'1_000' is not a number; write it without underscores"),
        ("0b1", "'0b1' is not a number"),
        ("0.2 %", "'0.2 %' is not a number"),
        ("yes", "'yes' is not a number"),
        ("true", "true is not a number"),
        ("", "null is not a number"),
        ("[0.2]", "[0.2] is not a number"),
        ("{a: 1}", "a mapping is not a number"),
    ],
)
def test_what_looks_like_a_number_and_is_none(value, say, tmp_path):
    (said,) = faults(f"policy_loss:\n  use: ppo-clip\n  clip_ratio_high: {value}\n", tmp_path)
    assert said == f"r.yaml:3:3: policy_loss.clip_ratio_high: {say} (policy_loss 'ppo-clip')"


@pytest.mark.parametrize("key", ["1", "1.5", "true", "null", "2024-01-01", "~", "12:30", "''"])
def test_a_key_is_text_whatever_it_looks_like(key, tmp_path):
    said = faults(f"{GOOD}kl: {{use: k3, coef: 1, {key}: 1}}\n", tmp_path)
    assert len(said) == 1
    assert "unknown key" in said[0]


def test_a_byte_order_mark_moves_nothing(tmp_path):
    assert faults(b"\xef\xbb\xbfpolicy_los: ppo-clip\npolicy_loss: grpo\n", tmp_path)[0].startswith("r.yaml:1:1: policy_los: ")
    (tmp_path / "r.yaml").write_bytes(b"\xef\xbb\xbfpolicy_loss: grpo\r\nempty: count\r\n")
    assert load_recipe(tmp_path / "r.yaml").values == {"policy_loss": "grpo", "empty": "count"}


def test_an_alias_may_be_used_and_an_anchor_is_no_value():
    document = read_yaml("a: &x {b: 1}\nc: *x\n", "s")
    assert document.values == {"a": {"b": 1}, "c": {"b": 1}}
    assert document.place(("c", "b")) == Place("s", 1, 8)
    assert document.place(("c", "b", "nowhere")) == Place("s", 1, 8)
    assert document.place(("nowhere",)) == Place("s", 1, 1)


def test_aliases_that_multiply_are_stopped(tmp_path):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 9))
    document = read_yaml(bomb, "bomb")
    assert [f.message for f in document.faults] == ["more than 20000 values; aliases multiply"]
    assert any("aliases multiply" in s for s in faults(bomb, tmp_path))


@pytest.mark.parametrize(("depth", "say"), [(60, "nested more than 50 deep"), (3_000, "nested too deeply to be read")])
def test_a_recipe_of_brackets_alone_is_refused(depth, say, tmp_path):
    assert any(say in s for s in faults(f"policy_loss: {'[' * depth}{']' * depth}\n", tmp_path))


# ── where a recipe comes from ────────────────────────────────────────────────────────────────────────────────────────


def test_a_name_that_is_not_in_the_box_has_a_nearest_one():
    with pytest.raises(
        RecipeError, match=r"^grop: no recipe has this name\. Did you mean 'grpo'\? A file is named by its path, as in \./grop\.yaml\.$"
    ):
        load_recipe("grop")


def test_a_file_that_is_not_there_has_a_nearest_one(tmp_path):
    (tmp_path / "mine.yaml").write_text(GOOD)
    with pytest.raises(RecipeError, match=r"min\.yaml: there is no such file\. Did you mean 'mine\.yaml'\?"):
        load_recipe(tmp_path / "min.yaml")
    with pytest.raises(RecipeError, match=r"nowhere/min\.yaml: there is no such file\.$"):
        load_recipe(tmp_path / "nowhere" / "min.yaml")


def test_a_folder_is_no_recipe(tmp_path, monkeypatch):
    (tmp_path / "dir.yaml").mkdir()
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path)
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe(tmp_path / "dir.yaml")
    (tmp_path / "ppo").mkdir()  # a folder of the name of a bundled recipe does not hide it
    monkeypatch.chdir(tmp_path)
    assert load_recipe("ppo").values["policy_loss"]["use"] == "ppo-clip"


def test_a_plugins_recipe_is_found_beside_the_folder_of_its_source(tmp_path, monkeypatch):
    """Where one has just written ``my-losses/``, ``lossary train my-losses`` means the recipe."""
    (tmp_path / "my-losses").mkdir()
    monkeypatch.chdir(tmp_path)
    more = {"my-losses": [("my-losses 0.1", "policy_loss: reinforce")]}
    for said in ("my-losses", "my-losses/my-losses"):
        assert load_recipe(said, more=more).values == {"policy_loss": "reinforce"}
    with pytest.raises(RecipeError, match="is a folder"):
        load_recipe("my-losses")


def test_text_handed_in_as_a_name_is_told_apart():
    with pytest.raises(RecipeError, match="this is text, not a name or a path; a recipe in Python is a dict"):
        compose("policy_loss: ppo-clip\naggregation: token-mean\n" + "# long\n" * 500)


def test_a_file_without_an_ending_is_read_too(tmp_path):
    (tmp_path / "mine").write_text(GOOD)
    assert load_recipe(tmp_path / "mine").name == "mine"


def test_a_recipe_may_be_loaded_once_more_and_stays_what_it_was():
    first = load_recipe("dapo", ["policy_loss.clip_ratio_high=0.3"])
    second = load_recipe(first, ["policy_loss.clip_ratio_high=0.4"])
    assert (first.values["policy_loss"]["clip_ratio_high"], second.values["policy_loss"]["clip_ratio_high"]) == (0.3, 0.4)
    assert str(second.document.place(("policy_loss", "clip_ratio_low"))).startswith("dapo.yaml:")


def test_every_bundled_recipe_says_what_it_is():
    box = bundled_recipes()
    assert set(box) == {"dapo", "demo", "dr-grpo", "grpo", "ppo", "reinforce-plus-plus", "rloo", "sft"} | set(box)
    assert all(text.startswith("# ") for text in box.values())


THEIRS = {"tilted": [("acme 1.2", "policy_loss: gspo\n")], "ppo": [("acme 1.2", "policy_loss: grpo\n")]}


@pytest.mark.parametrize(
    ("said", "use"),
    [
        ("tilted", "gspo"),
        ("acme/tilted", "gspo"),
        ("acme/ppo", "grpo"),
        ("lossary/ppo", {"use": "ppo-clip"}),
        ("dapo", {"use": "ppo-clip"}),
    ],
)
def test_recipes_of_plugins_are_found_like_our_own(said, use):
    found = load_recipe(said, more=THEIRS).values["policy_loss"]
    assert found == use or {k: found[k] for k in use} == use


def test_a_recipe_that_two_bring_must_be_said_with_its_vendor():
    with pytest.raises(RecipeError, match=r"ppo: the recipe comes from acme 1\.2 and lossary; say acme/ppo and lossary/ppo\."):
        load_recipe("ppo", more=THEIRS)
    with pytest.raises(RecipeError, match=r"tiltd: no recipe has this name\. Did you mean 'tilted'\?"):
        load_recipe("tiltd", more=THEIRS)
    with pytest.raises(RecipeError, match="nobody/tilted: no recipe has this name"):
        load_recipe("nobody/tilted", more=THEIRS)


def test_faults_in_a_plugins_recipe_name_the_plugin():
    recipe = load_recipe("acme/tilted", ["kl.coef=1"], more={"tilted": [("acme 1.2", "policy_los: gspo\n")]})
    with pytest.raises(RecipeError, match=r"(?m)^acme 1\.2: tilted:1:1: policy_los: there is no section 'policy_los'\."):
        compose(recipe)
