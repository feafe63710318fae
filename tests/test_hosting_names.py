"""What a recipe and the environment may name: code of its own folder or installed, and nothing that means nothing."""

import os
import subprocess
import sys

import pytest
from plugin_site import GOOD, install, pl, write

from lossary import Catalog, LossaryError, PluginError
from lossary.registry import Selection

# ── what a recipe may name ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def inside(site):
    """A recipe's folder, and code outside of it that leaves a trace when it runs."""
    home = site / "recipes"
    (home / "sub").mkdir(parents=True)
    write(site, "outside.py", "import sys\nsys.modules['it_ran'] = sys\n" + pl("outside"))
    write(home, "sub/within.py", pl("within"))
    (home / "link.py").symlink_to(site / "outside.py")
    (home / "linked").symlink_to(site)
    yield home
    sys.modules.pop("it_ran", None)


@pytest.mark.parametrize("name", ["../outside.py", "{site}/outside.py", "link.py", "linked/outside.py", "sub/../../outside.py"])
def test_a_recipe_names_no_file_outside_its_folder(inside, site, name):
    with pytest.raises(PluginError, match="lies outside the recipe's folder"):
        Catalog().with_plugin(name.format(site=site), inside)
    assert "it_ran" not in sys.modules


@pytest.mark.parametrize("name", ["sub/within.py", "./sub/within.py", "sub/../sub/within.py"])
def test_a_recipe_names_any_file_inside_it(inside, name):
    assert Catalog().with_plugin(name, inside).names("policy_loss") == ["within"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("os", "'os' belongs to Python itself, which holds no components."),
        ("antigravity", "'antigravity' belongs to Python itself"),
        ("xml.etree", "'xml.etree' belongs to Python itself"),
        (".outside", "'.outside' is no module's name"),
        ("outside-too", "'outside-too' is no module's name"),
        ("", "'' is no module's name"),
        ("recipes/sub/within", "is neither a module, as in my_package.losses, nor a .py file"),
        ("https://example.org/x", "is neither a module"),
        ("https://example.org/x.py", "there is no file"),
    ],
)
def test_a_recipe_names_modules_and_nothing_else(inside, name, why):
    with pytest.raises(PluginError) as caught:
        Catalog().with_plugin(name, inside)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "path", "why"),
    [
        ("policy_loss", "os:abort", "'os' belongs to Python itself"),
        ("task", "os:abort", "'os' belongs to Python itself"),
        ("policy_loss", "acts:on_nothing", "'acts:on_nothing' reads no column, so nothing but a decorator can say that it is a policy_loss; write @policy_loss."),
        ("task", "acts:on_nothing", "write @task."),
        ("kl", "acts:on_nothing", "write @kl_estimator."),
        ("policy_loss", "acts:on_words", "asks for the column 'words', which nobody declared"),
        ("policy_loss", "../acts:on_nothing", "'../acts' is no module's name"),
        ("policy_loss", "acts.py:on_nothing", "cannot be imported: ModuleNotFoundError"),
        ("policy_loss", ":on_nothing", "'' is no module's name"),
        ("policy_loss", "acts:", "the module has no ''"),
    ],
)  # fmt: skip
def test_an_import_path_names_components_and_nothing_else(site, kind, path, why):
    write(site, "acts.py", "def on_nothing():\n    raise AssertionError('it ran')\ndef on_words(words): ...\n")
    with pytest.raises(LossaryError) as caught:
        Catalog().resolve(kind, path)
    assert why in str(caught.value)


def test_the_working_folder_is_not_importable_by_the_command(site, tmp_path):
    """Python puts it first for `python -m`: then whatever lies there would be code of the recipe, or a plugin, or `random`."""
    folder = tmp_path / "somewhere"
    folder.mkdir()
    install(folder, "here-dist", "1", "here_mod", GOOD)
    write(folder, "random.py", "raise SystemExit('the wrong random')\n")
    (folder / "r.yaml").write_text("plugins: [here_mod]\npolicy_loss: stranger\n")
    done = subprocess.run([sys.executable, "-m", "lossary", "check", "r.yaml"], cwd=folder, capture_output=True, text=True, check=False)
    assert "wrong random" not in done.stderr
    assert "plugin 'here_mod' does not load: ModuleNotFoundError" in done.stderr
    assert done.returncode == 1


# ── names that are taken, and variables that do nothing ──────────────────────────────────────────────────────────────


def test_a_distribution_of_our_own_name_is_no_vendor(site):
    install(site, "Lossary", "9", "bad_one", GOOD)
    (failure,) = Catalog.load().failures
    assert str(failure) == (
        "plugin 'bad_one' (Lossary 9) did not load: its distribution is called 'lossary', which stands for the built-in components; rename it."
    )
    assert "bad_one" not in sys.modules


@pytest.mark.parametrize("variable", ["LOSSARY_STRICT", "LOSSARY_NO_PLUGINS"])
def test_a_switch_is_on_or_off(monkeypatch, variable):
    monkeypatch.setenv(variable, "maybe")
    with pytest.raises(LossaryError, match=f"{variable} is 'maybe'; it is a switch, 1 or 0"):
        Selection.of_environment()
    for on in ("1", "true", " YES ", "on"):
        monkeypatch.setenv(variable, on)
        assert Selection.of_environment().strict or Selection.of_environment().closed


def test_a_variable_that_is_nearly_one_of_ours_is_told_of(site, monkeypatch):
    monkeypatch.setenv("LOSSARY_PLUGIN", "ant")
    monkeypatch.setenv("LOSSARY_HOME", "/somewhere/else")
    assert "the variable LOSSARY_PLUGIN does nothing. Did you mean 'LOSSARY_PLUGINS'?" in Catalog.load().notes
    assert not any("LOSSARY_HOME" in note for note in Catalog.load().notes)


def test_blocking_a_component_without_its_kind_says_how(site, monkeypatch):
    install(site, "good-dist", "1.2", "good_one", GOOD)
    monkeypatch.setenv("LOSSARY_BLOCK", "stranger")
    assert Catalog.load().notes == [
        "LOSSARY_BLOCK names 'stranger', which blocks nothing. A component is blocked with its kind: policy_loss/stranger."
    ]


def test_a_pipe_is_no_plugin_file(site):
    os.mkfifo(site / "pipe.py")
    with pytest.raises(PluginError, match=r"pipe.py is no ordinary file"):
        Catalog().with_plugin("pipe.py", site)
