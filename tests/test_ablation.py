"""Ablations: what is varied and how it is named, and runs that a kill only delays."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands import ended

from lossary.ablation.ablation import bundled_ablations, parsed, read_ablation
from lossary.ablation.folder import AblationFolder, Run
from lossary.ablation.launching import Local
from lossary.ablation.report import page
from lossary.ablation.slurm import Slurm
from lossary.ablation.variants import slugs, spread
from lossary.registry import LossaryError, RecipeError
from lossary.trainer.run_folder import RunFolder

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
seeds: 2
budget: {steps: 3}
"""


def grid(text):
    return spread(parsed(text, "mine", Path.cwd(), "mine.yaml"))


def names(text):
    return [v.name for v in grid(text).variants]


def faults(text):
    with pytest.raises(RecipeError) as caught:
        grid(text)
    return [str(f) for f in caught.value.faults]


# ── what is varied ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_variants_are_named_by_what_differs():
    text = "base: demo\nvary: {policy_loss: [ppo-clip, {use: ppo-clip, clip_ratio_high: 0.3}, gspo], train.lr: [1e-3, 1e-4], kl: [null, {use: k3, coef: 0.1}]}"
    found = names(text)
    assert len(found) == len(set(found)) == 12
    assert found[0] == "ppo-clip, lr=0.001, no kl"
    assert "ppo-clip(clip_ratio_high=0.3), lr=0.0001, k3" in found


def test_the_base_is_the_variant_that_changes_nothing():
    made = grid("base: {base: grpo, aggregation: token-mean}\nvary: {aggregation: [seq-mean-token-sum, {use: token-mean}]}")
    assert (made.base, made.base_is_recipe) == ("token-mean", True)
    made = grid("base: grpo\nvary: {train.lr: [1e-4, 1e-5]}")
    assert (made.base, made.base_is_recipe) == ("lr=0.0001", False)


def test_a_run_is_found_by_its_variants_name(tmp_path):
    """The trainer names a run's folder after the recipe's file; whatever is in a name, the two agree and stay apart."""
    said = [
        "lr=0.001, no kl",
        "ppo-clip(clip_ratio_high=0.3)",
        "a/b",
        "../up",
        "a=1",
        "a-1",
        "A 1",
        "lr=1 #2",
        "[x*]?",
        "ü" * 300,
        "ü" * 299,
        "...",
    ]
    made = slugs(said)
    assert len({s.lower() for s in made}) == len(said)
    folder = AblationFolder(tmp_path)
    for name, slug in zip(said, made, strict=True):
        run = Run(name, slug, 0, 1)
        path = RunFolder.new(folder.home(run), slug, "").path
        assert folder.run_path(run) == path
        assert path.name == f"{slug}-0001"
        assert path.parent == tmp_path / "runs" / "seed-0"


def test_zip_and_exclude():
    assert names("base: demo\nvary: {train.lr: [1e-3, 1e-4], train.epochs: [1, 4]}\nzip: [[train.lr, train.epochs]]") == [
        "lr=0.001, epochs=1",
        "lr=0.0001, epochs=4",
    ]
    text = "base: demo\nvary: {policy_loss: [ppo-clip, {use: reinforce}], train.epochs: [1, 4]}\nexclude: [{policy_loss: reinforce, train.epochs: 4}]"
    assert names(text) == ["ppo-clip, epochs=1", "ppo-clip, epochs=4", "reinforce, epochs=1"]


def test_variants_pool_across_a_task():
    made = grid("base: demo\nvary: {policy_loss: [ppo-clip, reinforce], task: [spell-backward, add-numbers]}\nacross: [task]")
    assert [(v.contestant, v.stratum) for v in made.variants][:2] == [("ppo-clip", "spell-backward"), ("ppo-clip", "add-numbers")]


def test_a_varied_recipe_says_what_is_varied():
    a, b = grid("base: demo\nvary: {policy_loss: [gspo, {use: ppo-clip, clip_ratio_high: 0.3}], kl.coef: [0.5]}").variants
    assert "use: gspo" in a.recipe or "policy_loss: gspo" in a.recipe
    assert "clip_ratio_high: 0.3" in b.recipe
    assert "coef: 0.5" in a.recipe


def test_every_fault_of_every_variant_at_once():
    text = "base: demo\nvary:\n  policy_loss: [gsppoo, {use: ppo-clip, clip_ratio_hi: 0.3}]\n  train.lr: [fast, 1e-3]\n"
    said = faults(text)
    assert len(said) == 3
    assert said[0].startswith("mine.yaml:3:17: policy_loss")
    assert "No policy_loss is called 'gsppoo'. Did you mean" in said[0]
    assert "mine.yaml:3:" in said[1]
    assert "clip_ratio_high" in said[1]
    assert said[2].startswith("mine.yaml:4:14: train.lr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vary: {train.lr: [1]}", "base: required"),
        ("base: demo", "vary: required"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseed: 3", "Did you mean 'seeds'"),
        ("base: demo\nvary: {train.lr: 1e-3}", "mine.yaml:2:8: vary.train.lr: expected a list"),
        ("base: demo\nvary: {train.lr: [1e-3, 1e-3]}", "the same value as entry 0"),
        ("base: demo\nvary: {train.seed: [0, 1]}", "say seeds:"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nzip: [[train.lr, train.epoch]]", "'train.epoch' is not varied"),
        ("base: demo\nvary: {train.lr: [1e-3], train.epochs: [1, 2]}\nzip: [[train.lr, train.epochs]]", "equally many"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nexclude: [{train.lr: 5}]", "no variant is like this"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseeds: [1, 1]", "twice"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nseeds: yes", "expected how many"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nbudget: {step: 3}", "Did you mean 'steps'"),
        ("base: demo\nvary: {train.lr: [1e-3, 1e-4]}\nbudget: {runs: 3}", "mine.yaml:3:1: budget: 2 variants with 3 seeds are 6 runs"),
        (
            f"base: demo\nvary: {{{', '.join(f'train.x{i}: {list(range(10))}' for i in range(9))}}}",
            "1,000,000,000 combinations, even before exclude",
        ),
        ("base: dema\nvary: {train.lr: [1e-3]}", "mine.yaml:1:1: base: no recipe has this name. Did you mean 'demo'?"),
        ("base: demo\nvary: {train.lr: [1e-3]}\nexclude: [{train.lr: 1e-3}]", "every variant is excluded"),
        ("base: [demo]\nvary: {train.lr: [1e-3]}", "expected the name of a recipe"),
        ("base: demo\nbase: grpo", "stands here again"),
    ],
)
def test_faults_of_the_file(text, said):
    assert any(said in f for f in faults(text)), faults(text)


def test_a_file_that_is_not_there(tmp_path):
    (tmp_path / "losses.yaml").write_text(TINY)
    with pytest.raises(RecipeError, match=r"no such file. Did you mean 'losses.yaml'"):
        read_ablation(str(tmp_path / "loses.yaml"))
    with pytest.raises(RecipeError, match="no ablation has this name"):
        read_ablation("stale")


@pytest.mark.parametrize("name", sorted(bundled_ablations()))
def test_bundled_ablations_are_right(name):
    made = spread(read_ablation(name))
    assert len(made.variants) >= 4
    assert made.base_is_recipe


# ── runs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def begun(folder, *words):
    return [sys.executable, "-m", "lossary", "ablate", "tiny.yaml", "--out", str(folder), *words]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A tiny ablation in one piece."""
    home = tmp_path_factory.mktemp("whole")
    (home / "tiny.yaml").write_text(TINY)
    done = subprocess.run(begun(home / "out", "--json"), cwd=home, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return home, json.loads(done.stdout)


def test_a_run_of_everything(whole):
    home, told = whole
    assert (told["whole"], told["failed"], told["base"], told["metric"]) == (True, [], "ppo-clip", "eval/accuracy")
    assert sorted(s["name"] for s in told["ranking"]) == ["ppo-clip", "reinforce"]
    assert all((s["runs"], s["failed"], s["missing"]) == (2, 0, 0) for s in told["ranking"])
    assert sorted(p.parent.name + "/" + p.name for p in (home / "out").glob("runs/*/*-0001")) == [
        f"seed-{s}/{n}-0001" for s in (0, 1) for n in ("ppo-clip", "reinforce")
    ]


def test_a_second_time_nothing_is_run(whole):
    home, told = whole
    before = {p: p.stat().st_mtime_ns for p in (home / "out").rglob("metrics.jsonl")}
    done = subprocess.run(begun(home / "out", "--json"), cwd=home, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "begun" not in done.stderr
    assert json.loads(done.stdout) == told
    assert {p: p.stat().st_mtime_ns for p in (home / "out").rglob("metrics.jsonl")} == before


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_killed_and_begun_again_it_says_the_same(whole, tmp_path, how):
    (tmp_path / "tiny.yaml").write_text(TINY)
    process = subprocess.Popen(
        begun(tmp_path / "out", "-n", "2"), cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
    for _ in range(200):  # the runs of a killed ablation end with it
        try:
            folder.lock().close()
            break
        except LossaryError:
            time.sleep(0.05)
    done = subprocess.run(begun(tmp_path / "out"), cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert page(folder) == page(AblationFolder(whole[0] / "out"))


def test_the_index_is_made_again_from_the_folders(whole, tmp_path, monkeypatch, capsys):
    home, _ = whole
    index = home / "out" / "index.sqlite"

    def rows():
        with sqlite3.connect(index) as connection:
            made = connection.execute("SELECT variant, seed, state, step, final FROM runs ORDER BY variant, seed").fetchall()
            return made, connection.execute("SELECT count(*) FROM metrics WHERE name = 'reward'").fetchone()

    before = rows()
    assert [r[:4] for r in before[0]] == [(v, s, "done", 3) for v in ("ppo-clip", "reinforce") for s in (0, 1)]
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
    code, _, err = ended(monkeypatch, capsys, "ablate", "tiny.yaml", "train.lr=0.5", "--out", str(home / "out"))
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


@pytest.mark.slow
def test_a_run_that_fails_is_told_and_not_tried_again_unasked(tmp_path):
    (tmp_path / "broken.py").write_text(
        "from lossary import PerToken, policy_loss\n\n\n@policy_loss\ndef broken(log_prob: PerToken, advantages: PerToken) -> PerToken:\n"
        '    """Fail."""\n    raise RuntimeError("as promised")\n'
    )
    (tmp_path / "tiny.yaml").write_text(
        TINY.replace("reinforce]", "broken]").replace("base: demo", "base: demo\n  plugins: [broken.py]").replace("seeds: 2", "seeds: 1")
    )
    done = subprocess.run(begun(tmp_path / "out"), cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "failed: broken, seed 0" in done.stdout
    assert "as promised" in done.stdout
    again = subprocess.run(begun(tmp_path / "out"), cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert again.returncode == 1
    assert "begun" not in again.stdout
    assert "1 of 1 runs failed" in again.stdout


@pytest.mark.slow
def test_a_spent_budget_stops_and_goes_on_when_raised(tmp_path):
    (tmp_path / "tiny.yaml").write_text(TINY.replace("steps: 3", "steps: 3, cpu_minutes: 1e-6").replace("seeds: 2", "seeds: 1"))
    done = subprocess.run(begun(tmp_path / "out", "-n", "1"), cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert done.returncode == 3, done.stderr
    assert "budget of cpu_minutes is spent" in done.stdout.replace("\n", " ")


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
