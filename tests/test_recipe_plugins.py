"""A recipe's own code: files beside it, modules, and what is said when they do not load."""

import subprocess
import sys

import pytest

from lossary import RecipeError, compose, load_recipe
from lossary.builtin import catalog
from lossary.pipeline import survey

MINE = '''
"""Losses of mine."""
from lossary import PerToken, column, policy_loss
from lossary.algorithms.policy.grpo import grpo  # imported, not mine

valid = column("valid", level="sequence", doc="whether the answer could be checked")

@policy_loss(aliases=("half",))
def half_pg(log_prob: PerToken, advantages: PerToken, valid: PerToken, *, tau: float = 0.5) -> PerToken:
    """Half a policy gradient."""
    return -tau * valid * advantages * log_prob
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "my_losses.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)  # not the recipe's folder
    return tmp_path / "recipes"


def recipe(folder, plugins="[my_losses.py]", use="half-pg", more=""):
    file = folder / "r.yaml"
    file.write_text(f"policy_loss: {{use: {use}}}\nplugins: {plugins}\n{more}")
    return file


def refused(file):
    with pytest.raises(RecipeError) as caught:
        compose(file)
    return [str(f).replace(f"{file.parent}/", "") for f in caught.value.faults]


@pytest.mark.parametrize("use", ["half-pg", "half_pg", "half", "my-losses/half-pg"])
def test_a_file_is_relative_to_its_recipe(folder, use):
    bound = compose(recipe(folder, use=use)).plan.terms[0].bound
    assert (bound.component.name, bound.params) == ("half-pg", {"tau": 0.5})
    assert bound.component.distribution == "plugin my_losses.py"
    assert ("valid", False) in [(name, optional) for name, _, optional in bound.levels]


def test_a_recipes_plugin_stays_with_its_recipe(folder):
    compose(recipe(folder))
    assert "half-pg" not in catalog().names("policy_loss")
    plan, book, faults = survey(load_recipe(recipe(folder)), catalog())
    assert plan is not None
    assert faults == []
    assert "half-pg" in book.names("policy_loss")


def test_a_plugin_may_be_a_module_and_there_may_be_several(folder, monkeypatch):
    (folder / "other_losses.py").write_text(MINE.replace("half", "third"))
    monkeypatch.syspath_prepend(folder)
    file = recipe(folder, "[my_losses.py, other_losses]", more="kl: {use: k3, coef: 0.1}\n")
    assert compose(file, ["policy_loss.use=third-pg"]).plan.terms[0].bound.component.distribution == "plugin other_losses"
    assert compose(file, ["plugins=[other_losses]", "policy_loss=third_pg"]).plan.terms[0].name == "policy"


@pytest.mark.parametrize(
    ("plugins", "say"),
    [
        ("[my_lossess.py]", "r.yaml:2:11: plugins.0: plugin 'my_lossess.py': there is no file my_lossess.py. Did you mean 'my_losses.py'?"),
        (
            "[nowhere.at_all]",
            "r.yaml:2:11: plugins.0: plugin 'nowhere.at_all' does not load: ModuleNotFoundError: No module named 'nowhere'",
        ),
        ("[my_losses]", "There is a file my_losses.py beside the recipe: write 'my_losses.py'."),
        ("[broken.py]", "plugin 'broken.py' does not load: ModuleNotFoundError: No module named 'fancy_dep' (line 2 of broken.py)"),
        ("[typo.py]", "plugin 'typo.py' does not load: SyntaxError:"),
        ("[name.py]", "plugin 'name.py' does not load: NameError: name 'PerTokn' is not defined (line 4 of name.py)"),
        ("[column.py]", "asks for the column 'advantage', which nobody declared. Did you mean 'advantages'?"),
        ("[empty.py]", "plugin 'empty.py' (plugin empty.py) offers nothing; expected a decorated function, a column(...) or a hook"),
        ("my_losses.py", "r.yaml:2:1: plugins: expected a list of modules or .py files, as in [my_losses.py]"),
        ("[3]", "r.yaml:2:1: plugins: expected a list of modules or .py files, as in [my_losses.py]"),
    ],
)
def test_a_plugin_that_does_not_load_is_the_one_fault(folder, plugins, say):
    (folder / "broken.py").write_text("\nimport fancy_dep\n")
    (folder / "typo.py").write_text("def f(:\n")
    (folder / "name.py").write_text(
        "from lossary import policy_loss\n\n@policy_loss\ndef half_pg(log_prob: PerTokn):\n    return log_prob\n"
    )
    (folder / "column.py").write_text(MINE.replace("advantages: ", "advantage: "))
    (folder / "empty.py").write_text("from lossary.algorithms.policy.grpo import grpo\n")
    (said,) = refused(recipe(folder, plugins))
    assert said.startswith("r.yaml:2:")
    assert say in said


def test_other_faults_are_still_told_beside_a_broken_plugin(folder):
    said = refused(recipe(folder, "[gone.py]", more="kl: {use: k3, coef: high}\n"))
    assert [s.partition(": ")[0] for s in said] == ["r.yaml:2:11", "r.yaml:3:15"]


def test_a_name_that_an_imported_module_defines_says_where(folder, monkeypatch):
    """The parent happens to have imported the module: it must not work here and fail in a worker."""
    (folder / "losses_elsewhere.py").write_text(MINE.replace("half", "quarter"))
    monkeypatch.syspath_prepend(folder)
    __import__("losses_elsewhere")
    (said,) = refused(recipe(folder, "[my_losses.py]", use="quarter-pg"))
    assert "The module 'losses_elsewhere' defines it: name it under plugins" in said


def test_a_fresh_process_finds_the_plugin_by_the_recipe_alone(folder):
    file = recipe(folder)
    code = f"import lossary; print(lossary.compose({str(file)!r}).plan.terms[0].bound.component.name)"
    done = subprocess.run([sys.executable, "-c", code], cwd="/", capture_output=True, text=True, check=True)
    assert done.stdout == "half-pg\n"


def test_a_recipe_written_down_means_the_same_with_its_code_beside_it(folder, tmp_path):
    (folder / "sub").mkdir()
    (folder / "sub" / "third.py").write_text(MINE.replace("half", "third"))
    read = load_recipe(recipe(folder, "[my_losses.py, ./sub/third.py, json_free]"))
    assert "plugins:\n- my_losses.py\n- sub/third.py\n- json_free\n" in read.text()
    assert read.code() == {"my_losses.py": MINE.encode(), "sub/third.py": MINE.replace("half", "third").encode()}
    read = load_recipe(recipe(folder))
    (tmp_path / "copy.yaml").write_text(read.text())
    for name, source in read.code().items():
        (tmp_path / name).write_bytes(source)
    assert compose(tmp_path / "copy.yaml").plan.terms[0].bound.component.name == "half-pg"
