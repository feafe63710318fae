"""What a recipe, a checkpoint or a name may do: nothing but be read."""

import ast
import json
import tomllib
from pathlib import Path

import pytest
import torch
import yaml

import lossary
from lossary import LossaryError, RecipeError
from lossary.pipeline import document, load_recipe
from lossary.trainer import checkpoint
from lossary.trainer.ranks import Group
from lossary.trainer.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
SHIPPED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
FILES = sorted(f for p in SHIPPED for f in ((ROOT / p).rglob("*.py") if (ROOT / p).is_dir() else [ROOT / p]) if f.suffix == ".py")
TREES = {str(f.relative_to(ROOT)): ast.parse(f.read_text("utf-8")) for f in FILES}
NODES = [(name, node) for name, tree in TREES.items() for node in ast.walk(tree)]
PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE = {
    "load",
    "load_all",
    "full_load",
    "full_load_all",
    "unsafe_load",
    "unsafe_load_all",
    "Loader",
    "FullLoader",
    "UnsafeLoader",
    "CLoader",
}


def found(wanted, within=""):
    """Where in the source ``wanted(node)`` holds, as ``file: source``."""
    return [f"{name}: {ast.unparse(node)}" for name, node in NODES if name.startswith(within) and wanted(node)]


def imports_by_variable(node):
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "import_module"
    return called and not isinstance(node.args[0], ast.Constant)


def calls(node, owner, names):
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == owner and node.attr in names


def imports(node, names):
    if isinstance(node, ast.Import):
        return any(a.name.partition(".")[0] in names for a in node.names)
    return isinstance(node, ast.ImportFrom) and not node.level and str(node.module).partition(".")[0] in names


def test_the_walk_sees_the_source():
    assert len(TREES) > 200
    assert found(lambda n: calls(n, "yaml", {"safe_dump"}))
    assert found(lambda n: imports(n, {"torch"}))


# ── the source ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_yaml_is_only_ever_read_safely():
    assert found(lambda n: calls(n, "yaml", UNSAFE)) == []
    assert found(lambda n: isinstance(n, ast.ImportFrom) and n.module == "yaml") == []
    assert issubclass(document._Core, yaml.SafeLoader)


def test_nothing_is_unpickled():
    assert found(lambda n: imports(n, PICKLES)) == []
    assert found(lambda n: calls(n, "torch", {"load"})) == []  # what torch's own checkpoint reader loads are tensors alone, weights_only
    assert found(lambda n: isinstance(n, ast.keyword) and n.arg == "allow_pickle") == []
    assert found(lambda n: calls(n, "torch", {"package", "hub"})) == []


def test_no_text_is_run_and_no_shell_started():
    assert (
        found(lambda n: isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in {"eval", "exec", "compile", "__import__"})
        == []
    )
    assert found(lambda n: calls(n, "os", {"system", "popen"}) or (isinstance(n, ast.keyword) and n.arg == "shell")) == []


def test_code_by_name_enters_at_one_place():
    entering = found(
        lambda n: (
            isinstance(n, ast.Attribute)
            and (n.attr in {"import_module", "exec_module"} or (isinstance(n.value, ast.Name) and n.value.id == "runpy"))
        )
    )
    ours = [place for place in entering if not place.startswith("integrations/")]  # those name a module of their framework in the source
    assert {place.partition(":")[0] for place in ours} == {"registry/modules.py"}
    assert len(ours) == 3
    assert not found(imports_by_variable, "integrations/")
    by_entry_point = found(lambda n: isinstance(n, ast.Attribute) and ast.unparse(n) == "entry.load")
    assert by_entry_point == ["registry/catalog.py: entry.load"]


def test_nothing_is_put_on_the_path_of_imports():
    naming = found(lambda n: isinstance(n, ast.Attribute) and ast.unparse(n) == "sys.path")
    assert {place.partition(":")[0] for place in naming} == {"__main__.py", "cli/new_plugin.py"}
    assert "for p in sys.path if" in (ROOT / "cli/new_plugin.py").read_text()  # it only looks whether a name is taken
    assert "del sys.path[0]" in (ROOT / "__main__.py").read_text()


# ── what is read ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text",
    [
        "policy_loss: !!python/object/apply:os.system ['touch ran']",
        "policy_loss: !!python/name:os.system",
        "policy_loss: {use: grpo, clip_ratio: !!python/tuple [1, 2]}",
        "policy_loss: !!python/object/new:type {args: [x, [], {}]}",
        "!!python/object/apply:os.system ['touch ran']",
        "policy_loss: !include /etc/passwd",
    ],
)
def test_a_recipe_makes_no_objects(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"the tag '.*' is not read"):
        lossary.compose("r.yaml")
    assert not (tmp_path / "ran").exists()


class Evil:
    def __reduce__(self):
        return (open, ("ran", "w"))


def test_a_checkpoint_runs_no_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint.save(tmp_path, {"x": torch.zeros(2)}, {}, Group())
    (at,) = tmp_path.glob("checkpoint-1")
    (data,) = at.glob("*.distcp")
    torch.save(Evil(), data)
    index = json.loads((at / checkpoint.INDEX).read_text())
    index["tensors"]["x"]["chunks"][0][3:] = [0, data.stat().st_size]
    (at / checkpoint.INDEX).write_text(json.dumps(index))
    with pytest.raises(LossaryError, match="checkpoint-1 is no checkpoint: "):
        checkpoint.Saved(at).into({"x": torch.zeros(2)}, Group())
    assert not (tmp_path / "ran").exists()


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("grpo", "grpo-0001"),
        ("my.recipe_v1+2", "my.recipe_v1+2-0001"),
        ("../../evil", "evil-0001"),
        ("/etc/passwd", "etc-passwd-0001"),
        ("..", "run-0001"),
        ("", "run-0001"),
        (".hidden", "hidden-0001"),
        ("a b\nc\x00d", "a-b-c-d-0001"),
        ("Zürich", "Zürich-0001"),
    ],
)
def test_a_name_cannot_leave_the_folder_of_runs(tmp_path, name, folder):
    runs = tmp_path / "runs"
    made = RunFolder.new(runs, name, "policy_loss: grpo\n")
    assert (made.path.name, made.path.parent) == (folder, runs)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("place", ["../evil.py", "/tmp/evil.py", "sub/../../evil.py"])
def test_code_is_written_inside_the_run_folder(tmp_path, place):
    with pytest.raises(LossaryError, match="would be written outside the run folder"):
        RunFolder.new(tmp_path / "runs", "r", "", {place: b""})
    assert not list(tmp_path.rglob("evil.py"))


def test_only_code_of_the_recipes_folder_is_copied(tmp_path):
    (tmp_path / "secret.py").write_text("x = 1\n")
    home = tmp_path / "recipes"
    home.mkdir()
    (home / "link.py").symlink_to(tmp_path / "secret.py")
    for name in ("../secret.py", str(tmp_path / "secret.py"), "link.py"):
        (home / "r.yaml").write_text(f"plugins: [{name}]\npolicy_loss: grpo\n")
        with pytest.raises(LossaryError, match="lies outside the recipe's folder"):
            lossary.compose(home / "r.yaml")
        with pytest.raises(LossaryError, match="lies outside the recipe's folder"):
            load_recipe(home / "r.yaml").code()
