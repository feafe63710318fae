"""``lossary check --explain`` and ``--json``: where every value was said, and all that people are told told to machines too."""

import json
import re

import pytest
import yaml
from commands import run

import lossary
from lossary.cli.sections import written
from lossary.pipeline import bundled_recipes, load_recipe

RECIPE = """\
base: grpo
policy_loss: {clip_ratio_high: 0.28}
reward: {use: overlong, max_resp_len: 20480, overlong_buffer_len: 4096}
correction: {use: masked-is, denominator: original}
kl: {use: k3, coef: {use: linear, start: 0.01, end: 0.0, steps: 500}}
auxiliary: [{use: sft, coef: 0}]
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def explained(*words):
    """``{setting: (value, where it was said)}`` of the human table."""
    with pytest.MonkeyPatch.context() as wide:
        wide.setenv("COLUMNS", "200")
        code, out, err = run("check", *words, "--explain")
    assert code == 0, err
    table = out.partition("said in")[2]
    return {row[1]: (row[2].strip(), row[3]) for row in re.finditer(r"(?m)^  (\S+)  +(.*?)  +(\S+|command line)$", table)}


def told(*words):
    return json.loads(run("check", *words, "--json")[1])


def test_every_value_names_its_source(here, monkeypatch):
    monkeypatch.setenv("LOSSARY_SET__TRAIN__LR", "1e-3")
    monkeypatch.setenv("LOSSARY_SET__POLICY_LOSS__LOG_RATIO_BOUND", "null")
    found = explained("r.yaml", "train.steps=7", "advantage={use: grpo, scale: none}")
    assert {key: found[key] for key in found if key in WANTED} == WANTED
    assert all(said == "default" for key, (_, said) in found.items() if key.startswith("evaluate."))


WANTED = {
    "old_log_prob": ("recorded", "default"),
    "aggregation.use": ("seq-mean-token-mean", "grpo.yaml:5:1"),
    "policy_loss.use": ("grpo", "grpo.yaml:3:15"),
    "policy_loss.clip_ratio_high": ("0.28", "r.yaml:2:15"),
    "policy_loss.log_ratio_bound": ("null", "$LOSSARY_SET__POLICY_LOSS__LOG_RATIO_BOUND"),
    "policy_loss.coef": ("1.0", "default"),
    "advantage.use": ("grpo", "command line"),
    "advantage.scale": ("none", "command line"),
    "advantage.epsilon": ("1e-06", "default"),
    "correction.denominator": ("original", "r.yaml:4:30"),
    "correction.upper": ("2.0", "default"),
    "kl.coef.start": ("0.01", "r.yaml:5:35"),
    "kl.apply": ("loss", "default"),
    "auxiliary.0.coef": ("0", "r.yaml:6:24"),
    "task.use": ("spell-backward", "grpo.yaml:7:8"),
    "train.steps": ("7", "command line"),
    "train.lr": ("0.001", "$LOSSARY_SET__TRAIN__LR"),
    "train.epochs": ("1", "default"),
}


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_table_is_aligned_and_cuts_nothing(columns, here, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LOSSARY_SET__POLICY_LOSS__CLIP_RATIO_LOW", "0.1")
    code, out, _ = run("check", "r.yaml", "--explain")
    lines = out.partition("setting")[2].splitlines()[2:]
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    assert "…" not in out
    starts = {line.index(said) for line in lines for said in ("default", "grpo.yaml", "r.yaml:") if f"  {said}" in line}
    assert len(starts) == 1 or columns == 60
    assert "$LOSSARY_SET__POLICY_LOSS__CLIP_RATIO_LOW" in out


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_people_and_machines_are_told_the_same_settings(name, here):
    people, machines = explained(name), {s["path"]: s for s in told(name)["settings"]}
    assert people.keys() == machines.keys()
    assert {k: v for k, (v, _) in people.items()} == {k: written(s["value"]) for k, s in machines.items()}
    for key, (_, said) in people.items():
        m = machines[key]
        assert said == ("default" if m["origin"] == "default" else f"{m['source']}:{m['line']}:{m['column']}")
    lines = bundled_recipes()[name].splitlines()
    for m in machines.values():
        if m["origin"] == "file":  # the key itself; of a bare name the section, or the name in a list
            keys = m["path"].split(".")
            assert lines[m["line"] - 1][m["column"] - 1 :].startswith(
                (keys[-1], keys[-2] if len(keys) > 1 else keys[0], str(m["value"]))
            ), m


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_what_is_explained_composes_to_the_same(name, here):
    """Every setting said once more as an override changes nothing: the list is complete and right."""
    settings = told(name)["settings"]
    texts = [
        f"{s['path']}={yaml.safe_dump([s['value']], default_flow_style=True, width=10**6).strip()[1:-1]}"
        for s in settings
        if s["value"] is not None
    ]
    again = {s["path"]: s for s in told(name, *texts)["settings"]}
    assert {k: s["value"] for k, s in again.items()} == {s["path"]: s["value"] for s in settings}
    assert {s["origin"] for s in again.values() if s["value"] is not None} == {"override"}


def test_machines_are_told_all_that_people_are(here):
    found = told("r.yaml")
    assert found["ok"] is True
    assert [(s["stage"], s["use"]) for s in found["stages"]] == [
        ("reward", "overlong"), ("advantage", "grpo"), ("correction", "masked-is"), ("actor", "grpo"), ("actor", "k3"),
    ]  # fmt: skip
    correction, _, kl = found["stages"][2:]
    assert (correction["denominator"], correction["decide"], correction["slot"], correction["from"]) == (
        "original",
        "estimate",
        "correction",
        "lossary",
    )
    assert kl["coef"] == {"use": "linear", "params": {"start": 0.01, "end": 0.0, "steps": 500}}
    assert kl["aggregation"] == {"use": "seq-mean-token-mean", "params": {}}
    assert found["terms"] == found["stages"][3:]
    assert found["splits"] == {"scope": "token", "empty": "drop", "approximate": None}
    assert found["reads_rewards"] is True
    assert found["needs"]["loss"] == {"log_prob": "policy_loss 'grpo'"}
    assert found["notes"] == ["auxiliary.0: coef is 0, so 'sft' is not computed."]
    people = run("check", "r.yaml")[1]
    words = {
        *(s["use"] for s in found["stages"]),
        *(f"{k}={written(v)}" for s in found["stages"] for k, v in s["params"].items()),
        *(f"{k}={written(v)}" for k, v in kl["coef"]["params"].items()),
    }
    assert {w for w in words if w not in people} == set()


def test_machines_are_told_the_kl_in_the_reward(here):
    (kl,) = (s for s in told("ppo")["stages"] if s["stage"] == "KL in reward")
    assert (kl["use"], kl["coef"]["use"], kl["params"]["anchor"]) == ("k1", "adaptive-kl", "old")


def test_machines_are_told_faults_with_their_places(here, monkeypatch):
    monkeypatch.setenv("LOSSARY_SET__KL__CAPP", "1")
    (here / "r.yaml").write_text("policy_loss: {use: tiltd}\nkl: {use: k3, coef: 1}\n")
    code, out, _ = run("check", "r.yaml", "policy_loss.tlt=1", "policy_loss.use=ppo-clip", "empty={a: [b, c: }", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["settings"]) == (1, False, [])
    assert [(f["path"], f["source"], f["line"], f["column"], f["origin"]) for f in found["faults"]] == [
        ("kl.capp", "$LOSSARY_SET__KL__CAPP", 0, 0, "environment"),
        ("empty", "override 'empty={a: [b, c: }'", 0, 18, "override"),
        ("policy_loss.tlt", "override 'policy_loss.tlt=1'", 0, 13, "override"),
    ]  # fmt: skip
    (here / "r.yaml").write_text("policy_loss: {use: tiltd}\n")
    monkeypatch.delenv("LOSSARY_SET__KL__CAPP")
    (fault,) = told("r.yaml")["faults"]
    assert (fault["source"], fault["line"], fault["column"], fault["origin"]) == ("r.yaml", 1, 15, "file")


def test_what_is_wrong_a_thousand_times_is_told_fifty_times(here):
    (here / "r.yaml").write_text("policy_loss: grpo\n" + "".join(f"key{i}: 1\n" for i in range(1000)))
    code, _, err = run("check", "r.yaml")
    assert code == 1
    assert err.splitlines()[-2:] == ["... and 950 more", "1000 faults"]
    assert len(told("r.yaml")["faults"]) == 1000


def test_training_says_what_it_took_from_the_environment(here, monkeypatch):
    small = ("train.steps=1", "warm_up.steps=1", "rollout.prompts=2", "evaluate.items=2", "model={d_model: 8, layers: 1, heads: 2}")
    monkeypatch.setenv("LOSSARY_SET__TRAIN__SEED", "7")
    code, out, _ = run("train", "grpo", *small)
    assert code == 0
    assert "from the environment: $LOSSARY_SET__TRAIN__SEED\n" in out
    (run_folder,) = (here / "runs").iterdir()
    assert load_recipe(run_folder / "recipe.yaml").values["train"]["seed"] == 7
    monkeypatch.setenv("LOSSARY_SET__TRAIN__SEEDS", "7")
    with pytest.raises(lossary.RecipeError, match=r"\$LOSSARY_SET__TRAIN__SEEDS: train\.seeds: unknown key\. Did you mean 'seed'\?"):
        run("train", "grpo", *small)
