"""README and CONTRIBUTING say only what works: their blocks are run, their outputs compared."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from blocks import SHORT, blocks

import lossary
from lossary.cli.training import ROWS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = blocks(README)
PYTHON = [b.text for b in BLOCKS if b.language == "python"]
YAML = [b.text for b in BLOCKS if b.language == "yaml"]
SHOWN = {b.mark: b.text for b in BLOCKS if b.mark}


def lossary_command(*words, cwd):
    return subprocess.run([sys.executable, "-m", "lossary", *words], cwd=cwd, capture_output=True, text=True, timeout=240)


@pytest.fixture
def own(tmp_path):
    (tmp_path / "my_losses.py").write_text(PYTHON[0])
    (tmp_path / "mine.yaml").write_text(YAML[1])
    return tmp_path


def test_the_recipe_composes(tmp_path):
    (tmp_path / "shown.yaml").write_text(YAML[0])
    assert [t.name for t in lossary.compose(tmp_path / "shown.yaml").plan.terms] == ["policy", "kl", "entropy"]


def test_the_first_recipe_trains_as_it_stands(tmp_path):
    """It warms up, or its reward would stay 0, and it says itself all that a run needs."""
    (tmp_path / "my.yaml").write_text(YAML[0])
    said = yaml.safe_load(YAML[0])
    assert said["warm_up"]["steps"] > 0 < said["train"]["minibatches"]
    done = lossary_command("train", "my.yaml", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "held-out accuracy" in done.stdout


@pytest.mark.slow
def test_the_first_recipe_learns(tmp_path):
    (tmp_path / "my.yaml").write_text(YAML[0])
    told = json.loads(lossary_command("train", "my.yaml", "--json", cwd=tmp_path).stdout)
    assert told["reward_first"] < 0.2 < 0.8 < told["reward_last"]


def test_a_loss_of_ones_own_trains(own):
    done = lossary_command("train", "mine.yaml", "train.steps=2", "warm_up.steps=2", "rollout.prompts=4", "evaluate.items=8", cwd=own)
    assert done.returncode == 0, done.stderr
    assert '"actor/ratio"' in next(own.glob("runs/mine-0001/metrics.jsonl")).read_text()


def test_the_typo_is_answered_as_shown(own):
    (own / "mine.yaml").write_text(YAML[1].replace("use: tilted", "use: titled"))
    done = lossary_command("train", "mine.yaml", cwd=own)
    assert (done.returncode, done.stderr.strip()) == (2, SHOWN["typo"].strip())


def test_the_training_loop_runs(capsys):
    exec(compile(PYTHON[1], "README", "exec"), {"__name__": "readme"})
    assert re.fullmatch(r"-?\d\.\d{4} \d\.\d\d\n", capsys.readouterr().out)


def test_the_demo_ends_with_the_rows_shown():
    rows = re.findall(r"^ ([a-z-]+(?: [a-z()-]+)*)  +-?\d", SHOWN["demo"], re.M)
    assert len(rows) >= 4
    assert set(rows) <= {name for name, _ in ROWS}


def test_every_bundled_recipe_is_named():
    from lossary.pipeline import bundled_recipes

    assert all(f"`{name}`" in README for name in bundled_recipes())


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_named_exists(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    named = set(re.findall(r"(?:^|`)make ([a-z]+)", (ROOT / page).read_text(), re.M))
    assert named <= targets
    assert {"demo", "test"} & named


def test_the_component_in_the_docs_works():
    import torch

    text = (ROOT / "docs" / "components.md").read_text("utf-8")
    first = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    scope = {"__name__": "docs"}
    exec(compile(first, "components.md", "exec"), scope)
    objective = lossary.compose({"policy_loss": "by-difficulty"}, components=[scope["by_difficulty"]], columns=[scope["difficulty"]])
    batch = lossary.Batch.from_packed([2, 1], advantages=torch.ones(2), difficulty=torch.tensor([0.5, 0.0]), fields=[scope["difficulty"]])
    out = objective.loss(objective.weigh(batch), log_prob=torch.tensor([-1.0, -1.0, -2.0]))
    assert torch.isclose(out.total, torch.tensor((0.5 * 2 * 2 + 0.1 * 2 * 1) / 3))
    assert objective.metrics(out)["actor/difficulty"] == 0.25


def test_the_trainers_page_shows_its_defaults():
    from lossary.trainer import settings

    shown = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "trainer.md").read_text("utf-8"), re.S)[0])
    sections = {
        "model": "ModelSettings",
        "critic": "CriticSettings",
        "reference": "ReferenceSettings",
        "warm_up": "WarmUpSettings",
        "rollout": "RolloutSettings",
        "train": "TrainSettings",
        "evaluate": "EvaluateSettings",
    }
    differs = set()
    for section, model in sections.items():
        values = getattr(settings, model).model_validate(shown[section])
        differs |= {f"{section}.{k}" for k in shown[section] if getattr(values, k) != getattr(getattr(settings, model)(), k)}
    assert differs == {"train.steps", "train.minibatches"}
