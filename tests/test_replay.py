"""One file under two recipes: a one-key change shows the right term and the right tokens."""

import json
import re

import pytest
import torch
from commands import ended, run
from stepping import steps

import lossary
from lossary.batch import Batch
from lossary.diagnostics.dump import load_batch, save_batch
from lossary.diagnostics.packing import DumpError
from lossary.diagnostics.replaying import compare, differences
from lossary.diagnostics.running import rerun, shares


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """One real step of the demo, the last of its rollout, when the policy has moved."""
    path = tmp_path_factory.mktemp("dumps") / "step.safetensors"

    def keep(c):
        save_batch(path, c.batch, objective=c.objective, recipe=c.recipe, outputs=c.outputs, tokens=c.tokens, replace=True)

    steps("demo", path.parent, keep)
    return path


def compared(file, *overrides, against=None):
    dump = load_batch(file)
    book = lossary.catalog()
    recipe = dump.read_recipe(overrides) if against is None else lossary.load_recipe(against, overrides)
    return compare(dump, dump.objective(book), dump.objective(book, recipe))


ONE_KEY = {
    "kl.coef=0.1": {"kl"},
    "kl.use=k2": {"kl"},
    "entropy.coef=0.5": {"entropy"},
    "policy_loss.clip_ratio_high=0.0001": {"policy"},
    "aggregation=seq-mean-token-mean": {"policy", "kl", "entropy"},
    "policy_loss.clip_ratio_high=0.2": set(),
}


@pytest.mark.parametrize("change", ONE_KEY)
def test_a_one_key_change_shows_the_right_term(file, change):
    told = compared(file, change)
    assert {t.term for t in told.terms if not t.same} == ONE_KEY[change]
    assert told.anew == "weigh"
    assert (told.before.total != told.after.total) == bool(ONE_KEY[change]) or change.startswith("policy_loss.clip")
    assert not differences(load_batch(file).recorded, told.before)


def test_the_tokens_that_differ_most_are_named(file):
    told = next(t for t in compared(file, "kl.coef=0.1").terms if t.term == "kl")
    dump = load_batch(file)
    before = next(s for s in shares(dump.objective(lossary.catalog()), dump.batch, dump.outputs) if s.term.name == "kl")
    each = before.per_token(len(dump.outputs["log_prob"]))
    assert torch.allclose(each.sum(), before.coefficient * before.value)
    worst = int(each.abs().argmax())
    assert (told.gaps[0].sequence, told.gaps[0].token) == (int(dump.batch.sequences.index[worst]), int(dump.batch.sequences.places[worst]))
    assert told.gaps[0].after == pytest.approx(100 * told.gaps[0].before)
    assert [abs(g.after - g.before) for g in told.gaps] == sorted((abs(g.after - g.before) for g in told.gaps), reverse=True)


def test_another_advantage_is_estimated_anew_on_both_sides(file):
    told = compared(file, "advantage.scale=none")
    assert told.anew == "estimate"
    assert "one optimizer step" in told.caution


def test_another_recipe_may_lack_a_term(file):
    told = compared(file, against="dapo")
    found = {t.term: t for t in told.terms}
    assert found["kl"].after is None
    assert found["entropy"].after is None
    assert found["policy"].tokens < found["kl"].tokens


def test_a_part_of_a_step_keeps_the_totals_of_the_whole():
    mask = torch.ones(4, 3, dtype=torch.bool)
    objective = lossary.compose({"policy_loss": "ppo-clip", "aggregation": "token-mean"})
    batch = objective.weigh(Batch.from_padded(mask, advantages=torch.randn(4, 3), old_log_prob=-torch.rand(4, 3)))
    part = objective.split(batch, parts=2)[0]
    again = objective.weigh(part, totals=part.totals)
    assert torch.equal(next(iter(again.weights.values())), next(iter(part.weights.values())))
    assert not torch.equal(next(iter(objective.weigh(part).weights.values())), next(iter(part.weights.values())))


def test_what_is_not_as_recorded_is_named(file):
    dump = load_batch(file)
    moved = {**dump.outputs, "entropy": dump.outputs["entropy"] + 1e-3}
    told = differences(dump.recorded, rerun(dump.objective(lossary.catalog()), dump.batch, moved))
    assert "term entropy" in told
    assert "metric actor/entropy" in told
    assert "term policy" not in told


LOSS = """import lossary, pathlib
pathlib.Path(__file__).with_suffix(".ran").touch()

@lossary.policy_loss
def theirs(log_prob, advantages):
    return -log_prob * advantages
"""


def test_a_dumps_recipe_runs_code_of_the_folder_at_hand_or_none(tmp_path, monkeypatch, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    recipe = {"plugins": ["losses.py"], "policy_loss": "theirs", "aggregation": "token-mean"}
    for folder in (here, there):
        folder.mkdir()
        (folder / "losses.py").write_text(LOSS)
    monkeypatch.chdir(there)
    (there / "r.yaml").write_text(json.dumps(recipe))
    objective = lossary.compose("r.yaml")
    batch = objective.weigh(objective.estimate(Batch.from_packed([2, 3], advantages=torch.ones(5))))
    save_batch(there / "f", batch, objective=objective, recipe="r.yaml", outputs={"log_prob": -torch.rand(5)})
    (there / "losses.ran").unlink()

    monkeypatch.chdir(here)
    code, _, err = ended(monkeypatch, capsys, "replay", str(there / "f"), "--no-plugins")
    assert (code, "plugin 'losses.py' is not loaded: no plugins are" in err) == (2, True)
    assert not list(tmp_path.rglob("*.ran"))
    assert ended(monkeypatch, capsys, "replay", str(there / "f"))[0] == 0
    assert list(tmp_path.rglob("*.ran")) == [here / "losses.ran"]


def test_a_batch_without_a_recipe_or_outputs_cannot_be_replayed(tmp_path, monkeypatch, capsys):
    batch = Batch.from_padded(torch.ones(1, 2, dtype=torch.bool), advantages=torch.ones(1, 2))
    save_batch(tmp_path / "f", batch)
    with pytest.raises(DumpError, match="without a recipe"):
        load_batch(tmp_path / "f").objective(lossary.catalog())
    code, _, said = ended(monkeypatch, capsys, "replay", str(tmp_path / "f"))
    assert (code, "without a recipe" in said) == (2, True)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_replays(file):
    code, out, _ = run("replay", str(file))
    assert code == 0
    assert re.search(r"Bit-equal to what was recorded: the loss, 2 gradients and \d+ metrics", " ".join(out.split()))
    assert all(len(line) <= 80 for line in out.splitlines())
    told = json.loads(run("replay", str(file), "--json")[1])
    assert told["differs"] == told["other_code"] == []
    assert told["metrics"]["actor/loss"] == pytest.approx(told["loss"])


def test_the_command_compares(file):
    code, out, _ = run("replay", str(file), "--set", "kl.coef=0.1")
    assert code == 0
    assert re.search(r"^ policy .* same\s*$", out, re.M)
    assert re.search(r"^ kl .* \d+\s*$", out, re.M)
    assert all(len(line) <= 80 for line in out.splitlines())
    told = json.loads(run("replay", str(file), "--set", "kl.coef=0.1", "--json")[1])
    assert [t["term"] for t in told["terms"] if not t["same"]] == ["kl"]


def test_a_wrong_key_is_an_error_with_the_nearest_right_one(file, monkeypatch, capsys):
    code, _, said = ended(monkeypatch, capsys, "replay", str(file), "--set", "policy_loss.clip_ratio_hihg=0.1")
    assert code == 2
    assert "Did you mean 'clip_ratio_high'?" in said
