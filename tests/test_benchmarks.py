"""The benchmarks' own parts: what the page says is what was measured, and a peer's process answers or says why not."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent


def loaded(name: str):
    """A module of benchmarks/, which is no package."""
    spec = importlib.util.spec_from_file_location(f"benchmarks_{name}", ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = loaded("table")


def row(ours=2e-3, theirs=8e-3, note="", **targets):
    peer = {"name": "verl 0.9.1", "seconds": theirs, "note": note, "error": None}
    bound = {"what": "to move the bytes", "seconds": 1e-3}
    return {"figure": "loss", "ours": {"seconds": ours, "note": "", "error": None}, "peer": peer, "bound": bound, "targets": targets}


def test_the_page_says_what_was_measured():
    page = (ROOT / "docs" / "performance.md").read_text("utf-8")
    assert list(table.results()), "no results are committed"
    assert table.filled(page) == page, "run: python benchmarks/table.py"


def test_committed_results_are_full_runs_of_named_machines():
    for path in table.results():
        told = json.loads(path.read_text("utf-8"))
        assert not told["quick"]
        assert told["machine"] in ("2-core x86 CPU", "H200")


def test_a_row_names_ratio_and_bound_and_whether_the_target_was_missed():
    assert table.cells(row(ratio=0.4)) == ("loss", "2 ms", "verl 0.9.1: 8 ms", "0.25 (≤ 0.4)", "1 ms to move the bytes", "2")
    assert table.cells(row(ratio=0.2, to_bound=1.5))[3:] == ("0.25 (≤ 0.2: missed)", "1 ms to move the bytes", "2 (≤ 1.5: missed)")
    assert "-6000 µs (≤ 20 µs)" in table.cells(row(over=20e-6))[3]


def test_a_peer_that_is_not_there_is_said_with_the_reason():
    cells = table.cells(row(theirs=None, note="not installed: no such version"))
    assert cells[2:4] == ("verl 0.9.1: not installed: no such version", "-")


def test_a_figure_that_is_not_built_still_shows_its_peer():
    missing = row(ours=None)
    missing["ours"]["note"] = "not built: no head"
    assert table.cells(missing) == ("loss", "not built: no head", "verl 0.9.1: 8 ms", "-", "1 ms to move the bytes", "-")


@pytest.mark.parametrize("device", ["cpu", "dry"])
def test_a_process_of_a_peer_answers_each_request_by_one_line(tmp_path, device):
    n = 8
    x = {name: torch.rand(2, n) for name in ("log_prob", "old_log_prob", "ref_log_prob", "entropy", "advantages")}
    x |= {"mask": torch.ones(2, n, dtype=torch.bool), "clip": 0.2, "cap": 3.0, "kl_coef": 0.1, "entropy_coef": 0.01}
    torch.save(x, tmp_path / "in.pt")
    load = {"do": "load", "key": 0, "case": "loss", "options": {}, "inputs": str(tmp_path / "in.pt"), "results": str(tmp_path / "out.pt")}
    asked = [load, {"do": "run", "key": 0, "iterations": 2}, {"do": "run", "key": 7, "iterations": 1}, {"do": "drop"}]
    command = [sys.executable, str(ROOT / "benchmarks" / "worker.py"), "byhand", device]
    done = subprocess.run(command, input="\n".join(map(json.dumps, asked)) + "\n", capture_output=True, text=True, timeout=120)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0]["version"] == torch.__version__
    assert said[1] == {"loaded": True}
    assert said[2]["seconds"] > 0
    assert said[3] == {"error": "KeyError: 7"}
    assert said[4] == {"dropped": True}
    assert set(torch.load(tmp_path / "out.pt")) == {"loss", "log_prob", "entropy"}
