"""The command line: what it prints, for people and for machines, and how it ends."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from example import recipe_of
from typer.testing import CliRunner

import lossary
from lossary import __version__, catalog
from lossary.cli import main
from lossary.cli.app import app
from lossary.cli.finding import found
from lossary.cli.prose import paragraphs, plain
from lossary.cli.sections import keys_of, must_be_said, section_of, written
from lossary.registry import bounds_of
from lossary.trainer.loop import Trainer

MINE = '''"""Losses of mine."""
from typing import Annotated

from annotated_types import Gt
from lossary import PerToken, policy_loss


@policy_loss
def tilted(log_prob: PerToken, advantages: PerToken, *, tilt: Annotated[float, Gt(0)] = 1.0) -> PerToken:
    """Tilt."""
    return -tilt * advantages * log_prob
'''
RECIPE = """plugins: [my_losses.py]
advantage: rloo
policy_loss:
  use: tilted
  tilt: 2.0
task: {use: sort-letters, letters: 2}
model: {d_model: 8, layers: 1, heads: 2}
rollout: {prompts: 2, samples_per_prompt: 2}
train: {steps: 2}
evaluate: {items: 4}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A newcomer's folder: a file of losses and a recipe that uses one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "my_losses.py").write_text(MINE)
    (tmp_path / "r.yaml").write_text(RECIPE)
    return tmp_path


def run(*words):
    """The exit code, stdout and stderr of a command, in this process."""
    result = CliRunner().invoke(app, list(words))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def ended(monkeypatch, capsys, *words):
    """The same through ``main``, which turns our errors into a paragraph."""
    monkeypatch.setattr(sys, "argv", ["lossary", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    return caught.value.code, out.out, out.err


# ── list ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_list_json_is_a_list_of_components():
    code, out, _ = run("list", "--json")
    found = json.loads(out)
    keys = {"kind", "name", "aliases", "summary", "paper", "traits", "section", "keys", "inputs", "params", "distribution"}
    assert code == 0
    assert all(set(c) == keys for c in found)
    assert len(found) == len(list(catalog()))
    assert len({(c["kind"], c["name"]) for c in found}) == len(found)
    ppo = next(c for c in found if c["name"] == "ppo-clip")
    assert ppo["inputs"] == [{"name": n, "optional": False} for n in ("log_prob", "old_log_prob", "advantages")]
    assert ppo["aliases"] == ["regular"]
    assert ppo["traits"]["scope"] == "token"
    assert ppo["params"][0] == {
        "name": "clip_ratio_low", "type": "number", "bounds": ">= 0 and <= 1", "default": "0.2",
        "description": "how far a ratio may fall below 1 before it stops paying",
    }  # fmt: skip
    assert all(c["summary"] and c["distribution"] == "lossary" for c in found)


@pytest.mark.parametrize("kind", ["advantage", "policy_loss", "policy-loss"])
def test_list_of_one_kind(kind):
    code, out, _ = run("list", kind, "--json")
    assert code == 0
    assert {c["kind"] for c in json.loads(out)} == {kind.replace("-", "_")}


def test_list_for_people_names_everything():
    code, out, _ = run("list")
    assert code == 0
    assert all(c.name in out and c.kind.name in out for c in catalog())


def test_list_of_an_unknown_kind(monkeypatch, capsys):
    code, _, err = ended(monkeypatch, capsys, "list", "advantag")
    assert code == 2
    assert err.startswith("lossary: There is no kind 'advantag'. Did you mean 'advantage'?")


# ── show ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("k3", ["kl"]), ("low_var_kl", ["kl"]), ("low-var-kl", ["kl"]), ("lossary/k3", ["kl"]), ("kl/k3", ["kl"]), ("kl/low_var_kl", ["kl"]),
        ("grpo", ["policy_loss", "advantage"]), ("lossary/grpo", ["policy_loss", "advantage"]), ("advantage/grpo", ["advantage"]),
        ("policy-loss/grpo", ["policy_loss"]), ("kl/lossary/k3", ["kl"]),
    ],
)  # fmt: skip
def test_show_finds_a_name_in_every_spelling(name, kinds):
    code, out, _ = run("show", name, "--json")
    found = json.loads(out)
    assert code == 0
    assert [c["kind"] for c in found] == kinds
    assert all(c["doc"].startswith(c["summary"]) for c in found)


def test_a_table_is_shown_as_one_line_per_row():
    doc = "One line.\n\n=====  ======  ==========\nname   value   by ``x``\n=====  ======  ==========\na b    ``k``   a long one\nc      2\n=====  ======  =========="
    assert paragraphs(doc) == [("text", "One line."), ("table", "a b: value k; by x a long one\nc: value 2")]
    _, out, _ = run("show", "kl/k3")
    assert "straight-through: value k3; by log_prob d; in expectation of the KL, on policy" in " ".join(out.split())


@pytest.mark.parametrize("component", list(catalog()), ids=lambda c: f"{c.kind.name}/{c.name}")
def test_show_prints_a_page_for_every_component(component, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    code, out, _ = run("show", f"{component.kind.name}/{component.name}")
    assert code == 0
    assert out.startswith(f"{component.name}  {component.kind.name}, from lossary")
    assert all(name in out for name in (*component.columns, *component.params.model_fields, *component.aliases))
    assert "\\" not in out  # formulas are written for people
    assert "``" not in out


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("ppo_clp", "No component is called 'ppo_clp'. Did you mean 'ppo-clip'? `lossary find ppo_clp` searches everything."),
        ("zzzz", "No component is called 'zzzz'. `lossary find zzzz` searches everything."),
        ("k3+", "No component is called 'k3+'. Did you mean 'k3' (so called in verl)? `lossary find k3+` searches everything."),
        ("sequence_mask", "No component is called 'sequence_mask'. Did you mean 'masked-is' (so called in ms-swift and trl)? `lossary find"),
        ("nobody/k3", "'k3' comes from lossary: say lossary/k3."), ("nobody/grpo", "'grpo' comes from lossary: say lossary/grpo."),
        ("kl/k33", "No kl is called 'k33'. Did you mean 'k3'?"), ("kl/grpo", "'grpo' is registered as"),
    ],
)  # fmt: skip
def test_show_of_an_unknown_name(name, say, monkeypatch, capsys):
    code, out, err = ended(monkeypatch, capsys, "show", name)
    assert (code, out) == (2, "")
    assert err.startswith("lossary: ")
    assert say in err


@pytest.mark.parametrize("c", [c for c in catalog() if c.params.model_fields], ids=lambda c: f"{c.kind.name}/{c.name}")
def test_show_breaks_nothing_that_one_types(c, monkeypatch):
    """At 80 columns every hyperparameter stands whole, with its default, type and meaning, and no line is longer than the terminal."""
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run("show", f"{c.kind.name}/{c.name}")
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80
    below = out[out.rindex("  hyperparameter") :]
    words = set(below.split())
    for name, kind, bounds, default, said in bounds_of(c.params):
        assert re.search(rf"^  {name} +{re.escape(default)} ", below, re.M)
        assert {w.strip(",;") for w in f"{kind} {bounds} {plain(said)}".split()} <= {w.strip(",;") for w in words}


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("correction/high-entropy", "under correction, which also needs denominator: kept | original; may say decide: loss | measure"),
        ("masked-is", "under correction, which also needs denominator: kept | original reads"), ("truncated-is", "under correction scope"),
        ("k3", "under kl, which also needs coef: a number or a coefficient; may say apply: loss | reward (default: loss), aggregation"),
        ("auxiliary_loss/entropy", "under entropy, which also needs coef"), ("distill", "under auxiliary, which also needs coef"),
        ("clipped-mse", "under value_loss, which may also say coef: a number or a coefficient (default: 1)"),
        ("token-mean", "under aggregation, of the recipe or of a term"), ("linear", "under coef of a term"),
    ],
)  # fmt: skip
def test_show_says_what_a_recipe_must_add(name, say):
    _, out, _ = run("show", name)
    told = " ".join(re.search(r"^in a recipe.*\n(?:  .*\n)*", out, re.M)[0].split()).removeprefix("in a recipe ")
    assert told.startswith(say.removesuffix(" reads").removesuffix(" scope"))
    assert "decide" not in told or "high-entropy" in name


def refused(c, recipe) -> str:
    """What a recipe is refused for; nothing if it composes."""
    try:
        lossary.compose(recipe)
    except lossary.LossaryError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
@pytest.mark.parametrize("c", list(catalog()), ids=lambda c: f"{c.kind.name}/{c.name}")
def test_the_keys_of_a_section_are_what_a_recipe_is_held_to(c):
    """What must be said is missed where it is absent; what may be said is taken; what is not listed is refused."""
    recipe = yaml.safe_load(recipe_of(c))
    section = section_of(c)
    if section not in recipe:
        section = {"entropy": "auxiliary"}.get(section, section)
    if section not in recipe or not keys_of(c):
        assert set(must_be_said(c)) == set()
        return
    slot = recipe[section] if isinstance(recipe[section], dict) else {"use": recipe[section]}
    slot |= {"apply": "loss"} if "apply" in slot else {}  # in the reward there is no mean
    assert refused(c, {**recipe, section: slot}) == ""
    for key in keys_of(c):
        less = {k: v for k, v in slot.items() if k != key.name}
        assert bool(refused(c, {**recipe, section: less})) is (not key.default)
    every = {"coef": 0.5, "apply": "loss", "aggregation": "token-mean", "denominator": "original", "decide": "loss"}
    for key, value in every.items():
        wrong = "unknown key" in (said := refused(c, {**recipe, section: {**slot, key: value}})) or "drops no token" in said
        wrong |= "does not read the current policy" in said
        assert wrong is (key not in {k.name for k in keys_of(c)})


# ── find ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "first", "where"),
    [
        (["k3+"], "k3", "elsewhere"), (["low_var_kl"], "k3", "alias"), (["gspo"], "gspo", "name"), (["tis"], "truncated-is", "alias"),
        (["overlong_buffer_len"], "overlong", "hyperparameter"), (["teacher", "whole"], None, "text"), (["token_mask", "ms-swift"], "masked-is", "elsewhere"),
        (["DUAL_clip"], "dual-clip", "name"), (["2402.03300"], "grpo", "text"),
    ],
)  # fmt: skip
def test_find_looks_everywhere(words, first, where, monkeypatch):
    code, out, _ = run("find", *words, "--json")
    hits = json.loads(out)
    assert code == 0
    assert set(hits[0]) == {"kind", "name", "where", "text"}
    assert first in (None, hits[0]["name"])
    assert where in ("", *(h["where"] for h in hits))
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("find", *words)
    lines = out.splitlines()
    assert code == 0
    assert len(lines) == min(len(hits), 20) + (len(hits) > 20)
    assert all(line.startswith(f"{h['kind']}/{h['name']}  ".rstrip()) for line, h in zip(lines, hits, strict=False))
    assert max(map(len, lines)) <= 80
    assert all("*" in line for line in lines[:20])  # the words are marked
    assert any(f"*{words[0].lower().replace('_', '-')}*" in line.lower().replace("_", "-") for line in lines)


def test_find_puts_the_best_first():
    order = ["alias", "name", "elsewhere", "hyperparameter", "text"]
    for words in (["entropy"], ["mask"], ["ratio"], ["clip"]):
        hits = found(words, catalog())
        exact = [h for h in hits if h.text.replace("_", "-") == words[0]]
        rest = [order.index(h.where) for h in hits if h not in exact]
        assert rest == sorted(rest)
        assert hits[: len(exact)] == exact
        assert len({h.name for h in hits}) == len(hits) > 3
    assert next(h.name for h in found(["k3"], catalog())) == "kl/k3"
    assert [h.where for h in found(["entropy"], catalog())][:2] == ["name", "alias"]


def test_find_says_that_there_are_more():
    _, out, _ = run("find", "the")
    hits = json.loads(run("find", "the", "--json")[1])
    assert len(hits) > 20
    assert out.splitlines()[-1] == f"... and {len(hits) - 20} more; another word makes it fewer."


@pytest.mark.parametrize(("words", "say"), [(["zzz"], "Nothing speaks of 'zzz'.\n"), (["k3", "zzz"], "Nothing speaks of 'k3 zzz'.")])
def test_find_finds_nothing(words, say):
    code, out, err = run("find", *words)
    assert (code, out) == (1, "")
    assert err.startswith(say)
    code, out, _ = run("find", *words, "--json")
    assert (code, json.loads(out)) == (1, [])


@pytest.mark.parametrize("broken", ["{use: ppo-clip", "[1, 2}", "'ppo"])
def test_broken_yaml_in_an_override_is_called_that(broken, mine):
    code, _, err = run("check", "r.yaml", f"policy_loss={broken}")
    assert code == 1
    assert "policy_loss: no YAML: " in err
    assert re.search(r"\(character \d+\)\n1 fault\n$", err)


# ── check ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_check_says_what_a_recipe_resolves_to(mine):
    code, out, err = run("check", "r.yaml")
    assert (code, err) == (0, "")
    assert all(word in out for word in ("tilted", "tilt=2.0", "rloo", "token-mean", "group_ids, rewards or token_rewards", "log_prob"))


def test_check_shows_notes_and_warnings_and_is_content(mine):
    code, out, _ = run("check", "grpo", "policy_loss={use: gspo, clip_ratio_high: 0.2}", "aggregation=token-mean", "entropy.coef=0")
    assert code == 0
    assert "warning" in out
    assert "does not suit 'gspo'" in out
    assert "note" in out
    assert "entropy: coef is 0" in out


def test_check_names_every_fault_with_its_place(mine):
    (mine / "r.yaml").write_text(RECIPE.replace("tilt: 2.0", "tlt: 2.0").replace("rloo", "rlo").replace("steps: 2", "steps: 0"))
    code, out, err = run("check", "r.yaml")
    assert (code, out) == (1, "")
    assert [line.partition(": ")[0] for line in err.splitlines()] == ["r.yaml:2:1", "r.yaml:5:3", "r.yaml:9:9", "3 faults"]
    assert "Did you mean 'tilt'?" in err


def test_check_shows_a_kl_in_the_reward(mine):
    code, out, _ = run("check", "ppo")
    assert code == 0
    assert [re.split("  +", line)[1:] for line in out.splitlines() if line.startswith(("  KL", "  advantage"))] == [
        ["KL in reward", "k1", "adaptive-kl"], ["advantage", "gae"], ["advantage", "whiten"],
    ]  # fmt: skip
    assert "      coef: kl_coef=0.02  target=0.1  horizon=10000.0\n" in out
    assert "      unbiased=true  epsilon=1e-08  shift_mean=true\n" in out


CHAIN = """policy_loss: ppo-clip
advantage: grpo
reward: {use: overlong, max_resp_len: 20480, overlong_buffer_len: 4096}
filter: {use: group-mean-bounds, reward_range: [0, 1]}
kl: {use: k3, coef: {use: linear, start: 0.01, end: 0.0, steps: 500}}
correction:
  - {use: masked-is, denominator: original}
  - {use: high-entropy, denominator: original}
aggregation: {use: seq-mean-token-sum-norm, loss_scale_factor: 1024}
"""


@pytest.mark.parametrize("columns", [48, 80, 120])
@pytest.mark.parametrize("recipe", [None, "ppo", "dapo"])
def test_check_breaks_nothing_that_one_types(recipe, columns, mine, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    (mine / "chain.yaml").write_text(CHAIN)
    code, out, _ = run("check", recipe or "chain.yaml")
    assert code == 0
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= columns
    plan = lossary.compose(recipe or mine / "chain.yaml").plan
    bounds = [*plan.rewards, *plan.filters, *plan.advantages, *(c.bound for c in plan.corrections), *(t.bound for t in plan.terms)]
    words = {f"{k}={written(v)}" for b in (*bounds, *plan.aggregations.values()) for k, v in b.params.items()}
    assert len(words) > 5
    assert {w for w in words if w not in out} == set()
    if recipe is None:
        assert "reward_range=[0.0, 1.0]" in out
        assert "decided in loss  denominator=original" in out
        assert "coef: start=0.01  end=0.0  steps=500" in out


def test_values_are_written_as_a_recipe_says_them():
    values = [None, True, False, 1e-8, 20.0, 3, "none", "", (0.0, 1.0), [1, None], {"use": "x", "a": [True]}]
    assert [yaml.safe_load(written(v)) if not isinstance(v, float) else float(written(v)) for v in values] == [
        None, True, False, 1e-8, 20.0, 3, "none", "", [0.0, 1.0], [1, None], {"use": "x", "a": [True]}
    ]  # fmt: skip


def test_check_json(mine):
    code, out, _ = run("check", "r.yaml", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["faults"]) == (0, True, [])
    assert found["terms"] == [{"name": "policy", "role": "actor", "use": "tilted", "params": {"tilt": 2.0}, "aggregation": "token-mean"}]
    assert found["needs"]["loss"] == {"log_prob": "policy_loss 'tilted'"}
    code, out, _ = run("check", "r.yaml", "policy_loss.tlt=1", "--json")
    (fault,) = json.loads(out)["faults"]
    assert (code, json.loads(out)["ok"]) == (1, False)
    assert (fault["path"], fault["source"]) == ("policy_loss.tlt", "override 'policy_loss.tlt=1'")
    (mine / "r.yaml").write_text("policy_loss: {use: tiltd}\n")
    (fault,) = json.loads(run("check", "r.yaml", "--json")[1])["faults"]
    assert (fault["source"], fault["line"], fault["column"]) == ("r.yaml", 1, 15)


@pytest.mark.parametrize("recipe", ["grop", "nowhere.yaml", "."])
def test_check_of_no_recipe_is_a_fault(recipe, mine):
    code, _, err = run("check", recipe)
    assert code == 1
    assert err.endswith("1 fault\n")


def test_check_of_a_recipe_without_a_task_needs_none(mine):
    (mine / "loss.yaml").write_text("policy_loss: reinforce\n")
    code, out, _ = run("check", "loss.yaml")
    assert code == 0
    assert "advantages" in out


# ── train ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_train_json_ends_with_one_line_of_numbers(mine):
    code, out, err = run("train", "r.yaml", "--json", "--out", "here")
    (line,) = out.splitlines()
    told = json.loads(line)
    assert code == 0
    assert {"reward_first", "reward_last", "accuracy_first", "accuracy_last", "cpu_seconds", "run"} <= set(told)
    assert told["steps"] == 2
    assert told["run"] == str(Path("here") / "r-0001")
    assert all(type(told[k]) is float for k in ("reward_first", "reward_last", "accuracy_first", "accuracy_last", "cpu_seconds"))
    lines = [json.loads(x) for x in (mine / told["run"] / "metrics.jsonl").read_text().splitlines()]
    assert [x["step"] for x in lines] == [0, 1, 2]
    assert told["reward_first"] == lines[1]["reward"]
    assert told["accuracy_last"] == lines[-1]["eval/accuracy"]
    assert "step     2/2" in err


def test_train_ends_with_a_table_for_people(mine):
    code, out, _ = run("train", "r.yaml", "entropy.coef=0.001")
    assert code == 0
    for word in (
        "policy loss",
        "entropy loss",
        "total (actor)",
        "gradient norm",
        "reward",
        "held-out accuracy",
        "runs/r-0001/metrics.jsonl",
    ):
        assert word in out


def test_train_shows_what_ones_own_components_report(mine):
    report = ", ".join(f'"own{i}": Mean(log_prob.detach())' for i in range(8))
    text = MINE.replace("-> PerToken:", ":").replace("import PerToken", "import Mean, PerToken")
    (mine / "my_losses.py").write_text(text.replace("* log_prob\n", f"* log_prob, {{{report}}}\n"))
    code, out, _ = run("train", "r.yaml")
    assert code == 0
    assert re.findall(r"^ (actor/own\d)  ", out, re.M) == [f"actor/own{i}" for i in range(6)]
    assert "below the line: reported by your components, and 2 more" in " ".join(out.split())
    (mine / "my_losses.py").write_text(MINE)
    assert "reported by" not in run("train", "r.yaml")[1]


def test_train_warns_and_goes_on(mine):
    code, _, err = run("train", "r.yaml", "--json", "policy_loss={use: gspo}")
    assert code == 0
    assert "'gspo' is made for the aggregation seq-mean-token-mean" in err


def test_a_run_that_is_stopped_by_hand_says_how_to_go_on(mine, monkeypatch):
    real = Trainer._update

    def update(self):
        if self.step == 1:
            raise KeyboardInterrupt
        return real(self)

    monkeypatch.setattr(Trainer, "_update", update)
    code, _, err = run("train", "r.yaml", "--json", "train.checkpoint_every=1")
    assert code == 130
    assert "Stopped after step 1 of 2. Go on with: lossary train --resume runs/r-0001" in err
    monkeypatch.setattr(Trainer, "_update", real)
    code, out, _ = run("train", "--resume", "runs/r-0001", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 2)


def test_train_resumes_with_more_steps(mine):
    run("train", "r.yaml", "--json")
    code, out, _ = run("train", "--resume", "runs/r-0001", "--json", "train.steps=3")
    assert code == 0
    assert json.loads(out)["steps"] == 3
    assert [json.loads(x)["step"] for x in (mine / "runs/r-0001/metrics.jsonl").read_text().splitlines()] == [0, 1, 2, 3]
    assert not (mine / "runs/r-0002").exists()


@pytest.mark.parametrize(
    ("old", "new", "file", "say"),
    [
        ("use: tilted", "use: tiltd", "r.yaml", "r.yaml:4:3: policy_loss.use: No policy_loss is called 'tiltd'. Did you mean 'tilted'?"),
        ("tilt: 2.0", "titl: 2.0", "r.yaml", "r.yaml:5:3: policy_loss.titl: unknown key. Did you mean 'tilt'?"),
        ("tilt: 2.0", "tilt: -2.0", "r.yaml", "r.yaml:5:3: policy_loss.tilt: -2.0 is out of bounds; expected a number > 0"),
        (
            "advantages: PerToken", "advantage: PerToken", "my_losses.py",
            "my_losses.py:8: policy_loss 'tilted' asks for the column 'advantage', which nobody declared. Did you mean 'advantages'?",
        ),
    ],
    ids=["name", "hyperparameter", "bounds", "column"],
)  # fmt: skip
def test_a_newcomers_typo_is_told_in_one_paragraph(old, new, file, say, mine, monkeypatch, capsys):
    (mine / file).write_text((mine / file).read_text().replace(old, new))
    code, out, err = ended(monkeypatch, capsys, "train", "r.yaml")
    assert (code, out) == (2, "")
    assert err.startswith("lossary: r.yaml:")
    assert say in err
    assert err.count("\n") == 1
    assert not (mine / "runs").exists()  # nothing was begun
    code, _, err = run("check", "r.yaml")
    assert code == 1
    assert say in err


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (("train",), "say either a recipe or --resume RUN"), (("train", "r.yaml", "--resume", "x"), "say either a recipe or --resume RUN"),
        (("train", "--resume", "nowhere"), "nowhere has no checkpoint.pt to resume from"), (("train", "nowhere.yaml"), "there is no such file"),
        (("train", "r.yaml", "train.step=3"), "override 'train.step=3': train.step: unknown key. Did you mean 'steps'?"),
        (("train", "r.yaml", "model.heads=3"), "d_model 8 is not a multiple of heads 3"),
        (("train", "r.yaml", "task.letters=99"), "task.letters: 99 is out of bounds"),
        (("train", "r.yaml", "task=sort-leters"), "No task is called 'sort-leters'. Did you mean 'sort-letters'?"),
        (("train", "r.yaml", "--out", "r.yaml/x"), "cannot be made"), (("train", "r.yaml", "advantage=gae", "policy_loss=ppo-clp"), "ppo-clip"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_ends_with_2(words, say, mine, monkeypatch, capsys):
    code, out, err = ended(monkeypatch, capsys, *words)
    assert (code, out) == (2, "")
    assert err.startswith("lossary: ")
    assert say in err


def test_an_error_inside_a_loss_says_whose_and_where(mine, monkeypatch, capsys):
    (mine / "my_losses.py").write_text(MINE.replace("return -tilt", "return -tilt / 0"))
    code, _, err = ended(monkeypatch, capsys, "train", "r.yaml")
    assert code == 2
    assert err.splitlines()[-1] == "lossary: policy_loss 'tilted' failed at my_losses.py:11: ZeroDivisionError: float division by zero"


def test_a_loss_that_reduces_is_told_so(mine, monkeypatch, capsys):
    (mine / "my_losses.py").write_text(MINE.replace("advantages * log_prob", "(advantages * log_prob).mean()"))
    code, _, err = ended(monkeypatch, capsys, "train", "r.yaml")
    assert code == 2
    assert "policy_loss 'tilted' returned the shape []" in err
    assert "A component never reduces" in err


# ── the program itself ───────────────────────────────────────────────────────────────────────────────────────────────


def test_version_and_help():
    assert run("--version") == (0, f"{__version__}\n", "")
    code, out, _ = run("--help")
    assert code == 0
    assert all(word in out for word in ("list", "find", "show", "check", "train"))
    assert run("frobnicate")[0] == 2


def test_the_program_fails_in_plain_words(mine):
    done = subprocess.run([sys.executable, "-m", "lossary", "train", "r.yaml", "policy_loss.tilt=0"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr
        == "lossary: override 'policy_loss.tilt=0': policy_loss.tilt: 0 is out of bounds; expected a number > 0 (policy_loss 'tilted')\n"
    )


@pytest.mark.parametrize("code", ["import lossary", "import lossary.cli.app", "import lossary; lossary.__version__; dir(lossary)"])
def test_torch_is_not_imported_before_it_is_needed(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
