"""What examples/check_demo_lm.py says of a run is what the run itself measured, by transformers alone."""

import importlib.util
import json
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="pip install 'lossary[hf]'")
pytest.importorskip("tokenizers", reason="pip install 'lossary[hf]'")
from tiny_llama import made

from lossary import load_recipe
from lossary.trainer.loop import train
from lossary.trainer.settings import Settings

RECIPE = """
advantage: grpo
policy_loss: ppo-clip
task: {use: jsonl, path: sums.jsonl, reward: contains, max_new_tokens: 6}
model: {path: llama}
rollout: {prompts: 8, samples_per_prompt: 8}
train: {steps: 15, lr: 2e-2, checkpoint_every: 0}
evaluate: {every: 99, items: 256}
diagnose: {every: 0}
"""


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check_demo_lm", Path(__file__).parents[1] / "examples" / "check_demo_lm.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """A short run of a tiny model."""
    folder = tmp_path_factory.mktemp("demo")
    made(folder / "llama")
    sums = [{"prompt": f"{a}+{b}=", "answer": (a + b) % 10} for a in range(10) for b in range(10)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in sums))
    (folder / "r.yaml").write_text(RECIPE)
    return train(Settings.of(load_recipe(folder / "r.yaml")), folder / "runs")


def test_it_finds_what_the_run_measured(ended, check, capsys):
    run, lines = ended
    settings = Settings.of(load_recipe(run.recipe))
    was, now = lines[0]["eval/accuracy"], lines[-1]["eval/accuracy"]
    assert was != now
    assert check.score(settings, *check.before(settings)) == pytest.approx(was)
    assert check.score(settings, run.path / "model", {}) == pytest.approx(now)
    first, last = sum(line["reward"] for line in lines[1:6]) / 5, sum(line["reward"] for line in lines[-10:]) / 10
    assert check.main(run.path) == (0 if last >= 2 * first and now > was else 1)
    said = capsys.readouterr().out
    assert f"the first 5 steps {first:.3f}, of the last 10 {last:.3f}: {last / first:.2f} times as high" in said
    assert f"{was:.3f} before, {now:.3f} after" in said


@pytest.mark.parametrize(("last", "before", "after", "code"), [(0.5, 0.4, 0.6, 0), (0.49, 0.4, 0.6, 1), (0.9, 0.6, 0.6, 1)])
def test_it_fails_unless_both_came_out(last, before, after, code, ended, check, monkeypatch):
    scores = iter([before, after])
    monkeypatch.setattr(check, "rewards", lambda _: (0.25, last))
    monkeypatch.setattr(check, "score", lambda *_: next(scores))
    assert check.main(ended[0].path) == code


def test_a_run_too_short_to_compare_is_told_so(check, tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": i, "reward": 0.5}) + "\n" for i in range(14)))
    with pytest.raises(SystemExit, match="has 14 steps with a reward; the first 5 and the last 10 are compared"):
        check.rewards(tmp_path / "metrics.jsonl")
