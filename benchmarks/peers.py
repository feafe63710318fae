"""Makes ``.peers/<name>``, one environment per peer; those that are there already are left alone.

``python benchmarks/peers.py [name ...]``; with ``--beside-torch`` a peer becomes a plain folder of packages that borrows the running
interpreter's torch, for a machine that has a CUDA build of its own and no way out. ``lossary`` then stands for what we need ourselves.
The variable ``PEERS`` names another folder than ``.peers``.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
PEERS: dict[str, Any] = tomllib.loads((HERE / "peers.toml").read_text())
PLACE = Path(os.environ.get("PEERS", ROOT / ".peers"))
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
OUR_NEEDS = [d for d in OURS if not d.startswith(("torch", "numpy"))] + ["pytest", "pytest-benchmark"]


def made(name: str, beside_torch: bool) -> str:
    """Make one environment; return what stands in the way, if anything."""
    place = PLACE / name
    shutil.rmtree(place, ignore_errors=True)
    pip = ["-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    if beside_torch:
        python, where = sys.executable, ["--target", str(place / "site")]
        needs = [n for n in PEERS.get(name, {"needs": []})["needs"] if n != "triton"]  # torch's CUDA builds bring their own
        wanted = [OUR_NEEDS] if name == "lossary" else [["--no-deps", PEERS[name]["package"], *needs]]
    else:
        venv.create(place, with_pip=True)
        python, where = str(interpreter(name)), []
        wanted = [["torch", "numpy", *PEERS[name]["needs"]], ["--no-deps", *PEERS[name]["package"].split()]]
    for what in wanted:
        done = subprocess.run([python, *pip, *where, *what], capture_output=True, text=True)
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return (said or ["pip failed"])[-1].removeprefix("ERROR: ")
    return ""


def interpreter(name: str) -> Path:
    """Return the Python that runs a peer: that of its environment, or the running one beside a folder of packages."""
    own = PLACE / name / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    return Path(sys.executable) if (PLACE / name / "site").is_dir() else own


def environment(name: str) -> dict[str, str]:
    """Return the variables of a peer's process: what this one imports from is no business of its."""
    site = PLACE / name / "site"
    rest = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return {**rest, "OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(site)} if site.is_dir() else {})}


def missing(name: str) -> str:
    """Return why a peer cannot be run, or nothing."""
    state = PLACE / name / "state.json"
    if not state.is_file():
        return "not installed: `make peers` was not run"
    why = json.loads(state.read_text())["missing"]
    return f"not installed: {why}" if why else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--beside-torch", action="store_true")
    parser.add_argument("--again", action="store_true", help="make them anew even if they are there")
    asked = parser.parse_args()
    for name in asked.names or [*PEERS, *(["lossary"] if asked.beside_torch else [])]:
        if not asked.again and not missing(name):
            print(f"{name}: there already")
            continue
        package = PEERS[name]["package"] if name in PEERS else "what we need ourselves"
        print(f"{name}: installing {package} ...", flush=True)
        why = made(name, asked.beside_torch)
        (PLACE / name).mkdir(parents=True, exist_ok=True)
        (PLACE / name / "state.json").write_text(json.dumps({"package": package, "missing": why}))
        print(f"{name}: {why or 'ready'}", flush=True)


if __name__ == "__main__":
    main()
