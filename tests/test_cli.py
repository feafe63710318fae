"""The command line: what it prints, for people and for machines, and how it ends."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from commands import ended, run

import lossary
from lossary import __version__
from lossary.cli.sections import written
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


@pytest.mark.parametrize("broken", ["{use: ppo-clip", "[1, 2}", "'ppo"])
def test_broken_yaml_in_an_override_is_called_that(broken, mine):
    code, _, err = run("check", "r.yaml", f"policy_loss={broken}")
    assert code == 1
    assert "policy_loss: no YAML: " in err
    assert re.search(r"^override .*, character \d+: policy_loss: no YAML: .*\n1 fault\n$", err)


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
        (("train", "--resume", "nowhere"), "nowhere has no checkpoint to resume from"), (("train", "nowhere.yaml"), "there is no such file"),
        (("train", "r.yaml", "train.step=3"), "override 'train.step=3', character 7: train.step: unknown key. Did you mean 'steps'?"),
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
        == "lossary: override 'policy_loss.tilt=0', character 13: policy_loss.tilt: 0 is out of bounds; expected a number > 0 (policy_loss 'tilted')\n"
    )


@pytest.mark.parametrize("code", ["import lossary", "import lossary.cli.app", "import lossary; lossary.__version__; dir(lossary)"])
def test_torch_is_not_imported_before_it_is_needed(code):
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
