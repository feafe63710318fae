"""Ablations: runs that a kill only delays, and what is left of them in a folder."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time

import pytest
from commands import ended, run

import lossary.cli.ablating
from lossary.ablation.folder import AblationFolder
from lossary.ablation.launching import Local
from lossary.ablation.report import page
from lossary.ablation.slurm import Slurm
from lossary.registry import LossaryError

TINY = """
base:
  base: demo
  model: {d_model: 8, layers: 1, heads: 2}
  warm_up: {steps: 2}
  rollout: {prompts: 4, samples_per_prompt: 2}
  evaluate: {items: 8, every: 1}
  train: {checkpoint_every: 1}
vary:
  policy_loss: [{use: ppo-clip, clip_ratio_low: 0.2, clip_ratio_high: 0.2}, reinforce]
  train.lr: [1e-3]
seeds: 2
budget: {steps: 3}
"""


VARIANTS = ("ppo-clip, lr=0.001", "reinforce, lr=0.001")


class Here:
    """A launcher for which every run is a call: three quarters of a tiny run are the start of its process."""

    def __init__(self, lock=None):
        self.begun = []

    def start(self, name, words):
        self.begun.append(name)
        assert words[:3] == [sys.executable, "-m", "lossary"]
        try:
            code, _, said = run(*words[3:])
        except Exception as error:  # as the process would end with it
            return Done(False, str(error))
        return Done(code == 0, said)


class Done(tuple):
    """A run that has ended."""

    def __new__(cls, *ended):
        return super().__new__(cls, ended)

    def ended(self):
        return tuple(self)

    def stop(self):
        pass


def ablated(folder, *words, text=TINY):
    """Exit code, stdout and stderr of the ablation, run in this process, and the names of the runs that were begun."""
    file = folder.parent / "tiny.yaml"
    file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        here = Here()
        patch.setattr(lossary.cli.ablating, "Local", lambda lock: here)
        return *run("ablate", str(file), "--out", str(folder), *words), here.begun


def begun(folder, *words):
    return [sys.executable, "-m", "lossary", "ablate", "tiny.yaml", "--out", str(folder), *words]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny ablation in one piece."""
    home = tmp_path_factory.mktemp("whole")
    code, out, err, names = ablated(home / "out", "--json")
    assert code == 0, err
    assert len(names) == 4
    return home, json.loads(out)


def test_a_run_of_everything(whole):
    home, told = whole
    assert (told["whole"], told["failed"], told["base"], told["metric"]) == (True, [], VARIANTS[0], "eval/accuracy")
    assert sorted(s["name"] for s in told["ranking"]) == list(VARIANTS)
    assert all((s["runs"], s["failed"], s["missing"]) == (2, 0, 0) for s in told["ranking"])
    assert sorted(p.parent.name + "/" + p.name for p in (home / "out").glob("runs/*/*-0001")) == [
        f"seed-{s}/{n}-lr-0.001-0001" for s in (0, 1) for n in ("ppo-clip", "reinforce")
    ]


def test_a_second_time_nothing_is_run(whole):
    home, told = whole
    before = {p: p.stat().st_mtime_ns for p in (home / "out").rglob("metrics.jsonl")}
    code, out, _, names = ablated(home / "out", "--json")
    assert (code, names) == (0, [])
    assert json.loads(out) == told
    assert {p: p.stat().st_mtime_ns for p in (home / "out").rglob("metrics.jsonl")} == before


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_and_begun_again_it_says_the_same(whole, tmp_path, how):
    (tmp_path / "tiny.yaml").write_text(TINY)
    process = subprocess.Popen(
        begun(tmp_path / "out", "-n", "1"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    until = time.monotonic() + 100
    while time.monotonic() < until and not list((tmp_path / "out").rglob("metrics.jsonl")):
        time.sleep(0.02)
    process.send_signal(how)
    said, _ = process.communicate(timeout=60)
    if how is signal.SIGINT:
        assert process.returncode == 130, said
        assert "the same command goes on" in said
    folder = AblationFolder.existing(tmp_path / "out")
    assert not all(folder.finished(run) for run in folder.runs())
    for _ in range(1200):  # a minute on a loaded machine: the runs of a killed ablation end with it
        try:
            folder.lock().close()
            break
        except LossaryError:
            time.sleep(0.05)
    code, _, err, _ = ablated(tmp_path / "out")
    assert code == 0, err
    assert page(folder) == page(AblationFolder(whole[0] / "out"))


def test_the_index_is_made_again_from_the_folders(whole, tmp_path, monkeypatch, capsys):
    home, _ = whole
    index = home / "out" / "index.sqlite"

    def rows():
        with sqlite3.connect(index) as connection:
            made = connection.execute("SELECT variant, seed, state, step, final FROM runs ORDER BY variant, seed").fetchall()
            return made, connection.execute("SELECT count(*) FROM metrics WHERE name = 'reward'").fetchone()

    before = rows()
    assert [r[:4] for r in before[0]] == [(v, s, "done", 3) for v in VARIANTS for s in (0, 1)]
    assert before[1] == (12,)
    index.unlink()
    code, out, _ = 0, "", ""
    from lossary.cli.reporting import report

    report(home / "out", tmp_path / "page.html", as_json=True)
    code = json.loads(capsys.readouterr().out)["bytes"]
    assert code > 10_000
    assert rows() == before
    assert out == ""


def test_another_ablation_does_not_overwrite(whole, tmp_path, monkeypatch, capsys):
    home, _ = whole
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(TINY)
    code, _, err = ended(monkeypatch, capsys, "ablate", "tiny.yaml", "rollout.prompts=5", "--out", str(home / "out"))
    assert code == 2
    assert "is another recipe" in err
    assert "say another --out" in err


def test_a_folder_in_use_is_left_alone(whole, monkeypatch, capsys):
    home, _ = whole
    monkeypatch.chdir(home)
    with AblationFolder(home / "out").lock():
        code, _, err = ended(monkeypatch, capsys, "ablate", "tiny.yaml", "--out", "out")
    assert code == 2
    assert f"is being worked on by process {os.getpid()}" in err


def test_a_run_that_hears_no_interrupt_is_stopped_at_once():
    """In a shell's background SIGINT is ignored, by all that is begun there."""
    asleep = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    process = Local().start("a", [sys.executable, "-c", asleep])
    process.stop()
    assert process.process.returncode == -signal.SIGTERM


def test_a_run_that_fails_is_told_and_not_tried_again_unasked(tmp_path):
    (tmp_path / "broken.py").write_text(
        "from lossary import PerToken, policy_loss\n\n\n@policy_loss\ndef broken(log_prob: PerToken, advantages: PerToken) -> PerToken:\n"
        '    """Fail."""\n    raise RuntimeError("as promised")\n'
    )
    text = TINY.replace("reinforce]", "broken]").replace("base: demo", "base: demo\n  plugins: [broken.py]").replace("seeds: 2", "seeds: 1")
    code, out, _, names = ablated(tmp_path / "out", text=text)
    assert (code, len(names)) == (1, 2)
    assert "failed: broken, lr=0.001, seed 0" in out
    assert "as promised" in out
    code, out, _, names = ablated(tmp_path / "out", text=text)
    assert (code, names) == (1, [])
    assert "1 of 1 runs failed" in out
    code, _, _, names = ablated(tmp_path / "out", "--retry", text=text)
    assert (code, names) == (1, ["broken-lr-0.001-seed-0"])


def test_a_spent_budget_stops_and_goes_on_when_raised(tmp_path):
    little = TINY.replace("steps: 3", "steps: 3, cpu_minutes: 1e-6").replace("seeds: 2", "seeds: 1")
    code, out, _, names = ablated(tmp_path / "out", "-n", "1", text=little)
    assert (code, len(names)) == (3, 1)
    assert "budget of cpu_minutes is spent" in out.replace("\n", " ")
    code, _, _, names = ablated(tmp_path / "out", text=little.replace("1e-6", "5"))
    assert (code, len(names)) == (0, 1)


def test_the_cluster_launcher_by_submitits_local_executor(tmp_path):
    pytest.importorskip("submitit", reason="submitit comes with the slurm extra")
    slurm = Slurm(tmp_path, {"timeout_min": 2}, cluster="local")
    words = [sys.executable, "-c", "import os, time; time.sleep(1); print('threads', os.environ['OMP_NUM_THREADS'])"]
    first = slurm.start("a", words)
    assert (tmp_path / "a.job").exists()
    wrong = slurm.start("b", [sys.executable, "-c", "raise SystemExit('no such thing')"])
    until = time.monotonic() + 60
    while time.monotonic() < until and not (first.ended() and wrong.ended()):
        time.sleep(0.1)
    assert first.ended() == (True, "threads 1") or first.ended()[1].strip() == "threads 1"
    well, said = wrong.ended()
    for begun_here in (first, wrong):  # submitit leaves its own process to the end of this one
        begun_here.job._process.wait(timeout=30)
    assert not well
    assert "no such thing" in said


def test_a_job_that_still_runs_is_found_again(tmp_path, monkeypatch):
    """By a stand-in for the cluster's job: submitit's local ones are only seen by the process that began them."""
    pytest.importorskip("submitit", reason="submitit comes with the slurm extra")
    slurm = Slurm(tmp_path, {"timeout_min": 2}, cluster="local")

    class Waiting:
        def __init__(self, folder, job_id):
            self.job_id, self.folder = job_id, folder

        def done(self):
            return False

    (tmp_path / "a.job").write_text("4711")
    monkeypatch.setattr(slurm, "found", Waiting)
    monkeypatch.setattr(slurm.executor, "submit", lambda *_: pytest.fail("submitted again"))
    job = slurm.start("a", ["never"])
    assert (job.job.job_id, job.ended()) == ("4711", None)
    job.stop()
    assert (tmp_path / "a.job").exists()


def test_no_cluster_is_said(tmp_path):
    pytest.importorskip("submitit", reason="submitit comes with the slurm extra")
    with pytest.raises(LossaryError, match="submitit"):
        Slurm(tmp_path, {"nonsense": 1}, cluster="local")
