"""The same library in every way a process may start."""

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import pytest

import lossary

BIN = Path(sys.executable).parent
COMMANDS = [[str(BIN / "lossary")], [sys.executable, "-m", "lossary"]]


@pytest.mark.parametrize("command", COMMANDS, ids=["script", "module"])
def test_both_commands_are_the_same_program(command, tmp_path):
    done = subprocess.run([*command, "list", "kl", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert [c["name"] for c in json.loads(done.stdout)] == sorted(c.name for c in lossary.catalog() if c.kind.name == "kl")
    assert done.stderr == ""


def names_of(recipe):
    """What a worker knows, and what it makes of a recipe."""
    known = sorted(f"{c.kind.name}/{c.name}" for c in lossary.catalog())
    return known, [t.bound.component.name for t in lossary.compose(recipe).plan.terms]


def test_spawned_workers_build_their_own_catalog(tmp_path):
    """Nothing of the parent's reaches them but the recipe, which names its plugin."""
    (tmp_path / "my_losses.py").write_text(
        "from lossary import PerToken, policy_loss\n\n\n@policy_loss\ndef half_pg(log_prob: PerToken) -> PerToken:\n    return log_prob / 2\n"
    )
    (tmp_path / "r.yaml").write_text("policy_loss: half-pg\nplugins: [my_losses.py]\nentropy: 0.1\n")
    here = names_of(tmp_path / "r.yaml")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_spawned, [str(tmp_path / "r.yaml")]) == [here]
    assert here[1] == ["half-pg", "entropy"]


def _spawned(recipe):
    return names_of(recipe)


def test_two_ranks_of_torchrun_have_the_same_catalog(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("import lossary, os\nprint('rank', os.environ['RANK'], len(list(lossary.catalog())))\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    here = len(list(lossary.catalog()))
    assert sorted(out.split("\n"))[-2:] == [f"rank 0 {here}", f"rank 1 {here}"]
