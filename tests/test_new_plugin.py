"""``lossary new-plugin``: what it writes works as it stands, and what it must not write it does not."""

import ast
import re
import tomllib
from string import Template

import pytest
import yaml
from commands import ended, run
from plugin_env import Environment

import lossary
from lossary.cli.new_plugin import FILES, check_name, new_plugin
from lossary.registry import LossaryError

NAMES = ("my-losses", "x2", "a-name-as-long-as-it-may-be-with-letters-and-12345")


def made(folder, name):
    new_plugin(name, folder)
    return folder / name


def paths(name):
    return {Template(path).substitute(name=name, module=name.replace("-", "_")) for path, _, _ in FILES}


# ── what is written ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_every_file_is_there_and_says_the_name(name, tmp_path, capsys):
    folder = made(tmp_path, name)
    files = {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}
    assert files == paths(name)
    texts = {p: p.read_text("utf-8") for p in folder.rglob("*") if p.is_file()}
    assert not [p for p, text in texts.items() if re.search(r"\$(?!\{\{)", text)]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert (project["name"], project["entry-points"]) == (name, {"lossary": {name: name.replace("-", "_")}})
    assert yaml.safe_load((folder / ".github" / "workflows" / "test.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert all(ast.get_docstring(ast.parse(text)) for p, text in texts.items() if p.suffix == ".py")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_the_report_lists_what_was_made_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run("new-plugin", "my-losses", "--into", "deep/er")
    assert (code, err) == (0, "")
    assert all(path in out for path in paths("my-losses"))
    commands = re.search(r"Next:\n((?:  .*\n)+)", out)[1].splitlines()
    assert [c.strip() for c in commands] == ["cd deep/er/my-losses", "pip install -e '.[dev]'", "pytest"]
    assert "`lossary train my-losses`" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("columns", ["30", "60", "200"])
def test_the_report_cuts_no_path_however_narrow(tmp_path, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    _, out, _ = run("new-plugin", "my-losses", "--into", str(tmp_path))
    assert all(re.search(rf"^  {re.escape(path)}(  |$)", out, re.M) for path in paths("my-losses"))


def test_the_loss_is_one(tmp_path):
    """Without installing anything: the written module is a plugin file too."""
    folder = made(tmp_path, "my-losses")
    component = lossary.catalog().with_plugin("tilted.py", folder / "src" / "my_losses").get("policy_loss", "tilted")
    assert (component.scope, component.claims) == ("token", ("on-policy-gradient",))
    assert ".. math::" in component.doc
    recipe = yaml.safe_load((folder / "src" / "my_losses" / "recipe.yaml").read_text())
    assert recipe["policy_loss"]["use"] == "my-losses/tilted"
    component.params.model_validate({k: v for k, v in recipe["policy_loss"].items() if k != "use"})


# ── what is not ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("My_Losses", "'my-losses' would do."), ("2fast", "'fast' would do."), ("a--b", "'a-b' would do."), ("-x", "'x' would do."), ("", "a letter first."),
        ("../up", "'up' would do."), ("x/y", "'x-y' would do."), ("ünder", "'nder' would do."), ("a" * 51, "is no name for a plugin"), ("x ", "'x' would do."),
        ("class", "such as 'my-class'"), ("json", "such as 'my-json'"), ("lossary", "such as 'my-lossary'"), ("this-script", "such as 'my-this-script'"),
        ("kl", "'kl' is a kind of component, as in kl/NAME"), ("policy-loss", "is a kind of component"), ("grpo", "'grpo' is a recipe in the box"),
        ("torch", "Python knows a module 'torch' already"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_is_refused(name, say, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    code, out, err = ended(monkeypatch, capsys, "new-plugin", "--", name)
    assert (code, out) == (2, "")
    assert say in err
    assert list(tmp_path.iterdir()) == []


def test_the_name_of_an_installed_plugin_is_refused(site):
    info = site / "taken_one-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: taken-one\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lossary]\nother = nowhere\n")
    for name in ("taken-one", "other"):
        with pytest.raises(LossaryError, match=f"A plugin called '{name}' is installed already: taken-one 1.0"):
            check_name(name)
    check_name("another")


def test_a_file_beside_may_become_a_package_of_its_name(tmp_path, monkeypatch):
    (tmp_path / "my_losses.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    check_name("my-losses")
    monkeypatch.chdir(tmp_path.parent)
    with pytest.raises(LossaryError, match="Python knows a module 'my_losses' already"):
        check_name("my-losses")


@pytest.mark.parametrize("there", ["folder", "file", "link"])
def test_nothing_is_overwritten(there, tmp_path, monkeypatch, capsys):
    path = tmp_path / "my-losses"
    {
        "folder": lambda: (path.mkdir(), (path / "mine").write_text("x")),
        "file": lambda: path.write_text("x"),
        "link": lambda: path.symlink_to(tmp_path / "nowhere"),
    }[there]()
    before = sorted(tmp_path.rglob("*"))
    code, _, err = ended(monkeypatch, capsys, "new-plugin", "my-losses", "--into", str(tmp_path))
    assert code == 2
    assert "is there already; nothing was written." in err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    code, _, err = ended(monkeypatch, capsys, "new-plugin", "my-losses", "--into", str(tmp_path / "file"))
    assert code == 2
    assert "cannot be written: " in err


def test_half_a_package_is_never_left(tmp_path, monkeypatch):
    from lossary.cli import new_plugin as module

    monkeypatch.setattr(module, "FILES", (*FILES[:3], ("x", "no-such-template", "")))
    with pytest.raises(LossaryError):
        new_plugin("my-losses", tmp_path)
    assert list(tmp_path.iterdir()) == []


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_it_passes_its_own_tests_as_generated(name, tmp_path):
    folder = made(tmp_path, name)
    env = Environment(tmp_path / "env")
    env.install(folder, tmp_path / "dist")
    tests = env.run("pytest", "-q", cwd=folder)
    assert tests.code == 0, tests.text
    assert " passed" in tests.out
    assert "skipped" not in tests.out
    for words in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)):
        done = env.run(*words, cwd=folder)
        assert done.code == 0, done.text
    shown = env.run("lossary", "check", name, cwd=tmp_path)
    assert shown.code == 0, shown.text
    assert "tilted" in shown.out
