"""Runs whose sampler is behind, with a tool to talk to, and with files that lie beside the recipe."""

import json
import os

import pytest
import torch
from checkpoints import tensors_of

from lossary import load_recipe
from lossary.cli.training import padding
from lossary.trainer.loop import Trainer, train
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

RECIPE = """
advantage: grpo
policy_loss: ppo-clip
entropy: {coef: 0.1}  # it moves the policy where no sample is right
task: {use: sort-letters, letters: 2}
model: {d_model: 16, layers: 1, heads: 2}
warm_up: {steps: 3, batch: 4}
rollout: {prompts: 4, samples_per_prompt: 4, staleness: 2, bypass: true}
train: {steps: 5, lr: 3e-2, checkpoint_every: 1}
evaluate: {every: 5, items: 8}
"""


class Stopped(Exception):
    """The run ends here, as if it were killed."""


def begun(home, *overrides):
    file = home / "r.yaml"
    file.write_text(RECIPE)
    return RunFolder.new(home, "run", load_recipe(file, overrides).text())


def trainer(folder, listen=lambda line: None):
    return Trainer(Settings.of(load_recipe(folder.recipe)), folder, listen)


def lines_of(folder):
    """The metrics file without what the clock says."""
    lines = [json.loads(text) for text in folder.metrics.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def whole(home, *overrides):
    folder = begun(home, *overrides)
    trainer(folder).run()
    return folder


def test_a_stale_sampler_that_is_bypassed_goes_on_bit_for_bit(tmp_path):
    (tmp_path / "a").mkdir()
    uncut, cut = whole(tmp_path / "a"), begun(tmp_path)

    def stop(line):
        if line.get("step") == 4:
            raise Stopped

    with pytest.raises(Stopped):
        trainer(cut, stop).run()
    again = trainer(cut)
    again.resume()
    assert again.step == 3
    again.run()
    assert lines_of(uncut) == lines_of(cut)
    one, two = tensors_of(uncut.checkpoint), tensors_of(cut.checkpoint)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[n], two[n]) for n in one)


def test_staleness_and_bypass_are_seen_in_what_is_measured(tmp_path):
    for name in ("stale", "fresh"):
        (tmp_path / name).mkdir()
    stale = lines_of(whole(tmp_path / "stale"))[1:]
    recomputed = lines_of(whole(tmp_path / "fresh", "rollout.bypass=false"))[1:]
    assert [x["training/rollout_version"] for x in stale] == [0, 0, 0, 1, 2]
    assert [x["training/rollout_version"] for x in recomputed] == [0, 0, 0, 1, 2]
    # One step per rollout: against log-probs recomputed just before it, every ratio is 1, however old the samples are.
    assert [x["actor/ppo_kl"] for x in recomputed] == pytest.approx([0] * 5, abs=1e-6)
    assert stale[0]["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert max(abs(x["actor/ppo_kl"]) for x in stale[1:]) > 1e-4


def test_a_tool_is_learned_beside_after_a_warm_up_on_answers(tmp_path):
    said = {
        "advantage": "grpo", "policy_loss": "grpo", "task": {"use": "calculator", "digits": 1}, "model": {"d_model": 16, "layers": 1, "heads": 2},
        "warm_up": {"steps": 2, "batch": 4}, "rollout": {"prompts": 4, "samples_per_prompt": 2}, "train": {"steps": 2}, "evaluate": {"items": 4},
    }  # fmt: skip
    _, lines = train(Settings.of(load_recipe(said)), tmp_path)
    assert [x["step"] for x in lines] == [0, 1, 2]
    assert all(x["response/tool_tokens"] >= 0 for x in lines[1:])


def test_a_recipe_without_a_policy_loss_imitates_the_answers_of_a_task_with_a_tool(tmp_path):
    said = {
        "auxiliary": {"use": "sft", "coef": 1},
        "task": {"use": "calculator", "digits": 1},
        "model": {"d_model": 16, "layers": 1, "heads": 2},
    }
    _, lines = train(Settings.of(load_recipe({**said, "train": {"steps": 30, "lr": 3e-3}, "evaluate": {"items": 4}})), tmp_path)
    assert lines[-1]["actor/sft_loss"] < lines[1]["actor/sft_loss"]


# ── files beside a recipe ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A recipe in one folder, its data in another, and a run from a third."""
    for name in ("recipes", "data", "elsewhere"):
        (tmp_path / name).mkdir()
    for name, begin in (("asked", 0), ("kept", 100)):
        items = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(begin, begin + 20)]
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(x) + "\n" for x in items))
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path


def test_the_files_of_a_task_lie_beside_the_recipe_and_are_found_from_the_run(beside):
    file = beside / "recipes" / "r.yaml"
    task = "{use: jsonl, path: ../data/asked.jsonl, held_out: ../data/kept.jsonl}"
    file.write_text(f"advantage: grpo\npolicy_loss: grpo\ntask: {task}\n")
    first = Settings.of(load_recipe(os.path.relpath(file)))
    folder = RunFolder.new(beside / "runs", "r", first.recipe.text())
    again = Settings.of(load_recipe(folder.recipe))
    assert again.task.train_item(0) == first.task.train_item(0)
    assert [i.prompt for i in again.task.eval_items(2)] == ["100+1=", "101+1="]
    for key in ("path", "held_out"):
        assert os.path.isabs(again.recipe.values["task"][key])


@pytest.mark.parametrize(("key", "place"), [("path", "../data/model"), ("gguf", "../data/model.gguf")])
def test_the_place_of_a_model_is_written_out_in_full(beside, key, place):
    file = beside / "recipes" / "r.yaml"
    file.write_text(f"advantage: grpo\npolicy_loss: grpo\ntask: sort-letters\nmodel: {{{key}: {place}}}\n")
    settings = Settings.of(load_recipe(file))
    found = getattr(settings.model, key)
    assert os.path.isabs(found)
    assert os.path.normpath(found) == str(beside / "data" / os.path.basename(place))
    assert load_recipe(RunFolder.new(beside / "runs", "r", settings.recipe.text()).recipe).values["model"][key] == found


def test_padding_is_told_above_thirty_percent():
    assert padding([{"step": 0}, {"perf/padding_share": 0.2}, {"perf/padding_share": 0.38}]) == ""
    assert "34 %" in padding([{"perf/padding_share": 0.3}, {"perf/padding_share": 0.38}])
    assert padding([{"step": 0}]) == ""
