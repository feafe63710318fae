"""An environment in which a stranger's package is really installed, while lossary and what it needs come from this one."""

import os
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "plugin"


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err


class Environment:
    """A virtual environment; nothing that is installed here is seen by the tests that run beside."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
        self.python = str(folder / "bin" / "python")
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "outside.pth").write_text(f"{ROOT / '.view'}\n{sysconfig.get_paths()['purelib']}\n")

    def run(self, *words: str, cwd: Path, **env: str) -> Said:
        """Run a command whose first word is ``python`` or a module, as ``lossary``, ``pytest`` or ``pip``: nothing is fetched from anywhere."""
        module, *rest = words
        python = [self.python] if module == "python" else [self.python, "-m", module]
        if module == "pip":
            python = [sys.executable, "-m", "pip", "--python", self.python]
        quiet = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        own = {k: v for k, v in os.environ.items() if not k.startswith(("LOSSARY_", "PYTEST_", "COV_")) and k != "PYTHONPATH"}
        own |= {"OMP_NUM_THREADS": "1", "COLUMNS": "80", "NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", **quiet, **env}
        done = subprocess.run([*python, *rest], cwd=cwd, capture_output=True, text=True, timeout=600, env=own)
        return Said(done.returncode, done.stdout, done.stderr)

    def install(self, source: Path, dist: Path) -> Path:
        """Build a wheel of a package into ``dist`` and install it."""
        built = self.run("pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(dist), str(source), cwd=source)
        assert built.code == 0, built.text
        (wheel,) = dist.glob("*.whl")
        done = self.run("pip", "install", "--quiet", "--no-deps", str(wheel), cwd=dist)
        assert done.code == 0, done.text
        return wheel


def copied(source: Path, to: Path) -> Path:
    """A copy without what tests or builds left there."""
    shutil.copytree(source, to, ignore=shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis", "dist", "runs"))
    return to
