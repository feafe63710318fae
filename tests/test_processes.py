"""The same library in every way a process may start: one fingerprint of the catalog, an installed plugin included."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_site import GOOD, install, pl

import lossary
from lossary.registry import fingerprint

BIN = Path(sys.executable).parent
COMMANDS = [[str(BIN / "lossary")], [sys.executable, "-m", "lossary"]]
LIMIT = 180
"""Seconds, on a machine with other things to do."""
TOLD = """import lossary, sys
from lossary.registry import fingerprint


def told(recipe):
    component = lossary.compose(recipe).plan.terms[0].bound.component
    return f"{lossary.catalog().fingerprint()} {component.distribution} {fingerprint([component])}"
"""
CHILDREN = """import multiprocessing, warnings
from told import told

if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # that a forked child may hang, if its parent has threads
    recipe = sys.argv[1]
    print("parent", told(recipe))
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(1) as pool:
            print(way, *pool.map(told, [recipe]))
"""
RANK = """import os, sys
import torch, torch.distributed as dist
from told import told

dist.init_process_group("gloo")
found = [None, None]
dist.all_gather_object(found, told(sys.argv[1]))
os.write(1, f"rank {dist.get_rank()} {found[0]} {found[0] == found[1]}\\n".encode())  # at once: two ranks share the pipe
dist.destroy_process_group()
"""


@pytest.fixture
def elsewhere(site, monkeypatch):
    """An installed plugin, a recipe with a plugin file, and what a process there says of both."""
    install(site, "good-dist", "1.2", "good_plugin", GOOD)
    (site / "my_losses.py").write_text(pl("half_pg"))
    (site / "r.yaml").write_text("policy_loss: half-pg\nplugins: [my_losses.py]\nentropy: 0.1\n")
    (site / "told.py").write_text(TOLD)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
    component = lossary.compose(site / "r.yaml").plan.terms[0].bound.component
    assert "stranger" in lossary.catalog().names("policy_loss")
    return site, f"{lossary.catalog().fingerprint()} plugin my_losses.py {fingerprint([component])}"


def run(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True, timeout=LIMIT)


@pytest.mark.parametrize("command", COMMANDS, ids=["script", "module"])
def test_both_commands_are_the_same_program(command, elsewhere, tmp_path):
    done = run([*command, "list", "policy_loss", "--json"], "/")
    found = [(c["name"], c["distribution"]) for c in json.loads(done.stdout)]
    assert found == sorted((c.name, c.distribution) for c in lossary.catalog() if c.kind.name == "policy_loss")
    assert ("stranger", "good-dist 1.2") in found
    assert done.stderr == ""


def test_workers_have_the_catalog_of_their_parent_however_they_start(elsewhere):
    """Nothing of the parent's reaches a spawned one but the recipe, which names its plugin."""
    site, here = elsewhere
    (site / "children.py").write_text(TOLD.partition("\n")[0] + "\n" + CHILDREN)
    done = run([sys.executable, "children.py", "r.yaml"], site)
    assert done.stdout.splitlines() == [f"{way} {here}" for way in ("parent", "fork", "spawn")]


def test_two_ranks_of_torchrun_have_the_same_catalog(elsewhere):
    site, here = elsewhere
    (site / "rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "rank.py", "r.yaml"]
    assert sorted(run(command, site).stdout.splitlines()) == [f"rank {rank} {here} True" for rank in (0, 1)]
