"""The house itself: what ships, what an import costs, and that everything is loaded once."""

import ast
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import lossary

ROOT = Path(__file__).resolve().parent.parent
HOUSE = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
STAYS = {"tests", "docs", "benchmarks", "examples"}
TO_COME: set[str] = set()
"""Folders that the wheel has a place for already; what is built is taken out of this set."""


def run(code, cwd):
    return subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=True).stdout.strip()


def test_every_folder_of_the_house_ships():
    folders = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name[0] not in "._" and any(p.rglob("*.py"))} - STAYS
    files_ = {p.name for p in ROOT.glob("*.py")}
    assert folders | files_ | {"py.typed", "recipes"} == set(HOUSE) - TO_COME
    assert len(set(HOUSE)) == len(HOUSE)
    assert not TO_COME & folders


def test_every_code_folder_is_a_package():
    missing = {f.parent for entry in HOUSE for f in (ROOT / entry).rglob("*.py") if not (f.parent / "__init__.py").exists()}
    assert not missing


def test_every_file_says_what_it_is():
    silent = [f for entry in HOUSE for f in (ROOT / entry).rglob("*.py") if not ast.get_docstring(ast.parse(f.read_text("utf-8")))]
    assert not silent


def test_public_names_are_said_alike_three_times():
    tree = ast.parse((ROOT / "__init__.py").read_text())
    guard = next(n for n in tree.body if isinstance(n, ast.If))
    typed = {a.name: n.module for n in guard.body if isinstance(n, ast.ImportFrom) and n.module for a in n.names}
    assert typed == lossary._HOME
    assert sorted(typed) == lossary.__all__
    assert {*lossary.__all__, *lossary._FOLDERS} <= set(dir(lossary))
    assert all(getattr(lossary, name) is not None for name in lossary.__all__)


@pytest.mark.parametrize("package", ["registry", "numerics", "batch", "pipeline"])
def test_what_a_folder_offers_is_there(package):
    folder = getattr(lossary, package)
    assert all(hasattr(folder, name) for name in folder.__all__)
    assert len(set(folder.__all__)) == len(folder.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lossary' has no attribute 'compoze'"):
        _ = lossary.compoze
    with pytest.raises(ImportError):
        exec("from lossary import compoze")


def test_importing_the_root_imports_nothing(tmp_path):
    assert run("import sys; a = set(sys.modules); import lossary; print(set(sys.modules) - a)", tmp_path) == "{'lossary'}"


def test_a_folder_can_be_reached_from_the_root(tmp_path):
    assert run("import lossary; print(lossary.registry.KINDS['kl'].name, lossary.batch.Batch.__name__)", tmp_path) == "kl Batch"


FIRST = """
import importlib, os, sys
import pydantic, torch, typer  # once for all: what is tried is ours
for name in sys.argv[1].split():
    if not os.fork():
        try:
            importlib.import_module("lossary." + name)
        except BaseException as error:
            print(name, type(error).__name__, error, flush=True)
        os._exit(0)
    os.wait()
"""


def test_every_folder_can_be_the_first_that_is_imported(tmp_path):
    """No circle: wherever one enters the house, the door opens."""
    doors = [entry for entry in HOUSE if (ROOT / entry / "__init__.py").exists()]
    doors += ["builtin", "trainer.loop", "pipeline.build", "cli.training"]
    done = subprocess.run([sys.executable, "-c", FIRST, " ".join(doors)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""


def test_everything_is_loaded_once_and_under_its_own_name():
    """Pytest imports the root's ``__init__.py`` under the checkout's name: harmless only while that file is lazy."""
    lossary.catalog()
    names: dict[Path, list[str]] = {}
    for name, module in list(sys.modules.items()):
        if (file := getattr(module, "__file__", None)) and Path(file).resolve().is_relative_to(ROOT):
            names.setdefault(Path(file).resolve().relative_to(ROOT), []).append(name)
    inside = {f: n for f, n in names.items() if f.parts[0] in HOUSE and f != Path("__init__.py")}
    assert inside
    assert not {f: n for f, n in inside.items() if len(n) > 1 or not n[0].startswith("lossary.")}


def test_data_files_are_found():
    assert "tac"[::-1] in (files("lossary.tasks") / "words.txt").read_text("utf-8").split()
    assert {p.name for p in (files("lossary") / "recipes").iterdir()} == {p.name for p in (ROOT / "recipes").iterdir()}
    assert (files("lossary") / "py.typed").is_file()
