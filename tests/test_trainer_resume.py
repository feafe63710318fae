"""A run that is killed and taken up again is the run that was never interrupted; what cannot be taken up says why."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from checkpoints import RECIPE, same, tensors_of, written

from lossary import LossaryError, load_recipe
from lossary.cli.training import train_recipe
from lossary.trainer import checkpoint
from lossary.trainer.failures import Terminated
from lossary.trainer.loop import Trainer
from lossary.trainer.ranks import Group
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings


@pytest.fixture
def recipe(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text(RECIPE)
    return file


def trainer(folder, *overrides, listen=lambda line: None):
    return Trainer(Settings.of(load_recipe(folder.recipe, overrides)), folder, listen)


def started(recipe, *overrides, **how):
    return trainer(RunFolder.new(recipe.parent, "run", load_recipe(recipe, overrides).text()), **how)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The run in one piece, once for all tests."""
    file = tmp_path_factory.mktemp("finished") / "r.yaml"
    file.write_text(RECIPE)
    run = started(file)
    run.run()
    return run.folder


@pytest.fixture
def whole(finished, tmp_path):
    """A copy of it."""
    return RunFolder(Path(shutil.copytree(finished.path, tmp_path / "whole")))


class Killed(BaseException):
    """A kill at a moment of our choice."""


def dying(at, moment):
    """A listener that ends the run when the line of step ``at`` is written."""

    def listen(line):
        if line.get("step") == at and moment == "line":
            raise Killed

    return listen


MOMENTS = [(at, moment) for at in (1, 2, 4) for moment in ("line", "checkpoint", "half a line", "half a checkpoint")]


@pytest.mark.parametrize(("at", "moment"), [(0, "checkpoint"), *MOMENTS])  # before the first checkpoint there is nothing to resume
def test_a_run_goes_on_wherever_it_was_cut(at, moment, recipe, whole, monkeypatch):
    run = started(recipe, listen=dying(at, "line" if moment.endswith("line") else ""))
    real = checkpoint.save

    def save(path, tensors, plain, group):
        if moment == "half a checkpoint" and plain["step"] == at:
            (path / "checkpoint-9.partial").mkdir()
            (path / "checkpoint-9.partial" / "__0_0.distcp").write_bytes(b"half")
            raise Killed
        real(path, tensors, plain, group)
        if moment == "checkpoint" and plain["step"] == at:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        with pytest.raises(Killed):
            run.run()
    if moment == "half a line":
        with run.folder.metrics.open("a") as file:
            file.write('{"step": 7, "rew')
    again = trainer(RunFolder.existing(run.folder.path))
    again.resume()
    assert again.step == (at if moment == "checkpoint" else at - 1)
    again.run()
    same(again.folder, whole)


@pytest.mark.slow
def test_a_process_that_is_killed_outright_can_be_resumed(recipe, whole):
    command = [sys.executable, "-m", "lossary", "train"]
    long = "train.steps=400"  # more than it will live to see
    process = subprocess.Popen([*command, "r.yaml", long, "--out", "killed", "--json"], cwd=recipe.parent, stderr=subprocess.DEVNULL)
    metrics = recipe.parent / "killed" / "r-0001" / "metrics.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (metrics.exists() and len(metrics.read_text().splitlines()) > 4):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert len(metrics.read_text().splitlines()) < 400
    reached = checkpoint.Saved(RunFolder(metrics.parent).checkpoint).plain["step"]
    done = subprocess.run(
        [*command, "--resume", "killed/r-0001", f"train.steps={reached + 4}", "--json"], cwd=recipe.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    straight = started(recipe, f"train.steps={reached + 4}")
    straight.run()
    # The killed run meant to take 400 steps, so the step that is now the last was not evaluated; all else is that of the run in one piece.
    killed = RunFolder(metrics.parent)
    for a, b in zip(written(killed)[0], written(straight.folder)[0], strict=True):
        a.pop("eval/accuracy", None), b.pop("eval/accuracy", None)
        assert a == b
    ours, theirs = written(killed)[1], written(straight.folder)[1]
    assert all(torch.equal(ours[n], theirs[n]) for n in theirs)


def test_a_finished_run_may_be_given_more_steps(recipe, whole):
    short = started(recipe, "train.steps=2")
    short.run()
    longer = trainer(short.folder, "train.steps=4")
    longer.resume()
    longer.run()
    assert all(torch.equal(a, b) for a, b in zip(longer.policy.parameters(), started_from(whole).policy.parameters(), strict=True))


def started_from(folder, *overrides):
    run = trainer(folder, *overrides)
    run.resume()
    return run


@pytest.mark.parametrize("cut", ["before the checkpoint", "between checkpoint and recipe"])
def test_a_resume_with_overrides_that_is_killed_is_the_run_before_it_or_after_it(cut, whole, monkeypatch):
    old = whole.recipe.read_text()

    def dies(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*((checkpoint, "save") if cut == "before the checkpoint" else (RunFolder, "keep_recipe")), dies)
        with pytest.raises(Killed):
            train_recipe(None, ["train.steps=5", "train.lr=0.5"], whole.path.parent, whole.path, as_json=True)
    assert whole.recipe.read_text() == old
    again = trainer(RunFolder.existing(whole.path))
    again.resume()
    taken = cut == "between checkpoint and recipe"
    assert (again.settings.train.steps, again.settings.train.lr) == ((5, 0.5) if taken else (4, 1e-2))
    assert (whole.recipe.read_text() == old) != taken
    again.run()
    assert started_from(whole).step == again.settings.train.steps
    assert RunFolder.existing(whole.path).recipe.read_text() == again.settings.recipe.text()


def test_a_finished_run_that_is_resumed_stays_as_it_is(whole):
    before = whole.metrics.read_text()
    run = started_from(whole)
    assert run.run() == [json.loads(text) for text in before.splitlines()]
    assert whole.metrics.read_text() == before


def test_lines_that_will_come_again_are_dropped(tmp_path):
    folder = RunFolder(tmp_path)
    folder.metrics.write_text('{"step": 0}\n{"step": 1, "x": NaN}\n{"step": 2}\n{"step": 3, "x"')
    assert [line["step"] for line in folder.keep_until(1)] == [0, 1]
    assert folder.metrics.read_text() == '{"step": 0}\n{"step": 1, "x": NaN}\n'
    assert folder.keep_until(9) == folder.keep_until(1) != []
    assert RunFolder(tmp_path / "empty").metrics.exists() is False


def test_a_metrics_file_that_is_gone_is_an_error_and_no_lost_history(whole):
    whole.metrics.unlink()
    with pytest.raises(LossaryError, match=r"metrics\.jsonl is gone"):
        started_from(whole)


@pytest.mark.parametrize("line", ["[1]", "3", "null", '{"a": 1}', "\udcff"])
def test_a_damaged_line_before_the_last_is_an_error_with_its_number(line, whole):
    text = whole.metrics.read_text().splitlines()
    whole.metrics.write_bytes("\n".join([text[0], line, *text[1:]]).encode(errors="surrogateescape"))
    with pytest.raises(LossaryError, match=r"metrics\.jsonl:2: no line of metrics"):
        started_from(whole)


def test_settings_of_the_optimizers_come_from_the_recipe_and_its_overrides(whole):
    run = started_from(whole, "train.steps=5", "train.lr=0.5", "train.weight_decay=0.25")
    group = run.optimizing.optimizers["actor"].param_groups[0]
    assert (group["lr"], group["weight_decay"]) == (0.5, 0.25)


# ── what cannot be resumed ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_folder_without_a_checkpoint(tmp_path):
    with pytest.raises(LossaryError, match="has no checkpoint to resume from"):
        RunFolder.existing(tmp_path)


@pytest.mark.parametrize("file", [checkpoint.INDEX, "__0_0.distcp"])
@pytest.mark.parametrize("content", [b"", b"rubbish", b"{}", "half"])
def test_a_checkpoint_that_is_damaged(file, content, whole):
    path = whole.checkpoint / file
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 2] if content == "half" else content)
    with pytest.raises(LossaryError, match=r"checkpoint-\d+ is no checkpoint: "):
        started_from(whole)


class Evil:
    """Opens a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def test_a_checkpoint_that_holds_code_is_not_run(whole, tmp_path):
    (whole.checkpoint / ".metadata").write_bytes(pickle.dumps(Evil(tmp_path / "pwned")))  # where torch's own reader would look
    index = json.loads((whole.checkpoint / checkpoint.INDEX).read_text())
    torch.save(Evil(tmp_path / "pwned"), whole.checkpoint / "evil.distcp")
    size = (whole.checkpoint / "evil.distcp").stat().st_size
    for of in index["tensors"].values():
        of["chunks"] = [[offsets, sizes, "evil.distcp", 0, size] for offsets, sizes, *_ in of["chunks"]]
    (whole.checkpoint / checkpoint.INDEX).write_text(json.dumps(index))
    with pytest.raises(LossaryError, match="is no checkpoint"):
        started_from(whole)
    assert not (tmp_path / "pwned").exists()


def test_a_checkpoint_reads_no_file_outside_of_it(whole):
    text = (whole.checkpoint / checkpoint.INDEX).read_text()
    (whole.checkpoint / checkpoint.INDEX).write_text(text.replace("__0_0.distcp", "../__0_0.distcp"))
    with pytest.raises(LossaryError, match="lies outside of it"):
        started_from(whole)


def test_a_checkpoint_of_something_else(tmp_path, whole):
    checkpoint.save(whole.path, {"weights": torch.zeros(2)}, {"step": 3}, Group())
    with pytest.raises(LossaryError, match="is no checkpoint of a run"):
        started_from(whole)


def test_a_recipe_that_was_changed_behind_its_back(whole):
    whole.recipe.write_text(whole.recipe.read_text().replace("lam: 0.9", "lam: 0.8"))
    with pytest.raises(LossaryError, match=r"recipe\.yaml was changed after the checkpoint was written"):
        started_from(whole)


@pytest.mark.parametrize(
    ("override", "say"),
    [
        ("model.d_model=8", "does not fit this recipe and its overrides"), ("kl=[]", "an empty list"), ("kl.0.coef=0.5", "of another recipe"),
        ("kl.1.coef={use: adaptive-kl, kl_coef: 1, target: 1, horizon: 1}", "of another recipe"),
    ],
)  # fmt: skip
def test_overrides_that_make_it_another_run(override, say, whole):
    with pytest.raises(LossaryError, match=say):
        started_from(whole, override)


def test_a_checkpoint_is_whole_or_absent(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, {"x": torch.ones(2)}, {"step": 1, "nested": [{"t": torch.arange(3)}]}, Group())
    first = checkpoint.newest(tmp_path)

    def dies(*_, **__):
        raise Killed

    for where, name in ((checkpoint, "dcp_save"), (checkpoint, "_flushed")):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, dies)
            with pytest.raises(Killed):
                checkpoint.save(tmp_path, {"x": torch.zeros(2)}, {"step": 2}, Group())
        assert checkpoint.newest(tmp_path) == first
    saved = checkpoint.Saved(first)
    assert saved.plain["step"] == 1
    assert saved.plain["nested"][0]["t"].tolist() == [0, 1, 2]
    assert tensors_of(first)["x"].tolist() == [1, 1]
    checkpoint.save(tmp_path, {"x": torch.zeros(2)}, {"step": 2}, Group())
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["checkpoint-2"]


def test_a_full_disk_keeps_the_checkpoint_before_it(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, {"x": torch.ones(2)}, {"step": 1}, Group())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint._Writer, "write_data", full)
    with pytest.raises(LossaryError, match=r"checkpoint-2 cannot be written, the one before it is kept: .*No space left on device"):
        checkpoint.save(tmp_path, {"x": torch.ones(2)}, {"step": 2}, Group())
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-1"]


def test_run_folders_are_numbered_and_never_shared(tmp_path):
    names = [RunFolder.new(tmp_path / "runs", "a", "x: 1\n").path.name for _ in range(3)]
    assert names == ["a-0001", "a-0002", "a-0003"]
    (tmp_path / "file").write_text("")
    with pytest.raises(LossaryError, match="cannot be made"):
        RunFolder.new(tmp_path / "file", "a", "")


def test_sigterm_finishes_the_step_and_leaves_a_checkpoint(recipe, whole):
    def listen(line):
        if line.get("step") == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    run = started(recipe, "train.checkpoint_every=0", listen=listen)
    with pytest.raises(Terminated, match="terminated after step 2 of 4; the checkpoint is written"):
        run.run()
    again = trainer(run.folder, "train.checkpoint_every=1")
    again.resume()
    assert again.step == 2
    again.run()
    same(again.folder, whole)
