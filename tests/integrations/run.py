"""``make test-integrations``: each framework in ``.peers/<name>``, with this checkout installed beside it, against its own code.

``python tests/integrations/run.py [verl] [trl] [skyrl]``; a framework that cannot be installed here is said, and is no failure: the contract
tests of ``make test`` then stand alone.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import peers  # noqa: E402

NEEDS = ["hatchling", "pluggy", "pydantic", "pyyaml", "typer", "rich", "jinja2", "packaging", "pytest"]


def tested(name: str) -> bool:
    """Install a framework unless it is there, then run its tests in its own Python; return whether none failed."""
    if peers.missing(name):
        subprocess.run([sys.executable, str(ROOT / "benchmarks/peers.py"), name], check=True)
    if why := peers.missing(name):
        print(f"{name}: skipped, {why}")
        return True
    python = str(peers.interpreter(name))
    pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *NEEDS], check=True)
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", str(ROOT)], check=True)
    print(f"{name}:", flush=True)
    command = [python, "-m", "pytest", "-c", os.devnull, "-q", "-p", "no:cacheprovider", str(HERE / f"live_{name}.py")]
    return subprocess.run(command, env=peers.environment(name), cwd=ROOT).returncode == 0


if __name__ == "__main__":
    results = {name: tested(name) for name in sys.argv[1:] or ["verl", "trl", "skyrl"]}
    sys.exit(0 if all(results.values()) else "failed: " + ", ".join(name for name, fine in results.items() if not fine))
