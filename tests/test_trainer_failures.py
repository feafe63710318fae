"""What may go wrong around a run: it is asked to end, its task is empty, its rewards say nothing."""

import json
import signal
import subprocess
import sys
import time

import pytest
import torch

from lossary import LossaryError, load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

RECIPE = """
advantage: grpo
policy_loss: ppo-clip
task: {use: sort-letters, letters: 2}
model: {d_model: 8, layers: 1, heads: 2}
rollout: {prompts: 2, samples_per_prompt: 2}
train: {steps: 100000, checkpoint_every: 0}
evaluate: {every: 100000, items: 2}
"""


def run_of(text, folder, *overrides):
    (folder / "r.yaml").write_text(text)
    return Trainer(Settings.of(load_recipe(folder / "r.yaml", overrides)), RunFolder.new(folder, "r", "{}\n"))


@pytest.mark.slow
def test_sigterm_ends_the_command_with_143_and_a_checkpoint_to_go_on_from(tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "lossary", "train"]
    process = subprocess.Popen(
        [*command, "r.yaml", "--out", "runs"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics, deadline = tmp_path / "runs" / "r-0001" / "metrics.jsonl", time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=100)[0]
    assert process.returncode == 143, said
    steps = json.loads(metrics.read_text().splitlines()[-1])["step"]
    assert f"Stopped after step {steps} of 100000. Go on with: lossary train --resume runs/r-0001" in said
    assert "Traceback" not in said
    again = subprocess.run(
        [*command, "--resume", "runs/r-0001", f"train.steps={steps + 1}", "--json"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(metrics.read_text().splitlines()[-1])["step"] == steps + 1


def test_a_task_without_items_is_an_error_with_its_place_before_the_run_begins(tmp_path):
    (tmp_path / "none.jsonl").write_text("")
    (tmp_path / "r.yaml").write_text(RECIPE.replace("{use: sort-letters, letters: 2}", "{use: jsonl, path: none.jsonl, reward: exact}"))
    with pytest.raises(LossaryError, match=r"r\.yaml:4:1: task: .*none\.jsonl has no lines: a task needs questions"):
        Settings.of(load_recipe(tmp_path / "r.yaml"))


def unmoved(trainer):
    """Run it, and whether its policy is as it was."""
    before = [p.detach().clone() for p in trainer.policy.parameters()]
    lines = trainer.run()
    return lines, all(torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))


@pytest.mark.parametrize("filtered", [False, True])
def test_a_batch_whose_rewards_are_all_equal_teaches_nothing_and_breaks_nothing(filtered, tmp_path, monkeypatch):
    trainer = run_of(("filter: group-spread\n" if filtered else "") + RECIPE, tmp_path, "train.steps=2")
    monkeypatch.setattr(type(trainer.task), "reward", lambda *_: 1.0)
    lines, same = unmoved(trainer)
    assert same
    for line in lines[1:]:
        assert line["groups/zero_variance"] == 1.0
        assert line["actor/grad_norm"] == 0.0
        assert ("actor/pg_loss" in line) is not filtered  # of no token there is no mean
        assert line.get("actor/pg_loss", 0.0) == 0.0
        assert "skipped_steps" not in line


def test_only_kl_and_entropy_learn_from_rewards_that_are_all_equal(tmp_path, monkeypatch):
    trainer = run_of(RECIPE + "entropy: {coef: 0.1}\n", tmp_path, "train.steps=1")
    monkeypatch.setattr(type(trainer.task), "reward", lambda *_: 0.0)
    lines, same = unmoved(trainer)
    assert not same
    assert lines[1]["actor/grad_norm"] > 0
