"""``lossary plugins``, and the other commands where plugins are installed: good ones, broken ones, none."""

import json
import os
import subprocess
import sys

import pytest
from commands import ended, run
from plugin_site import GOOD, install, pl, write

import lossary
from lossary.registry import API, PluginWarning

QUIET = pytest.mark.filterwarnings("ignore::lossary.registry.PluginWarning")
BROKEN = "\nimport nowhere_to_be_found\n"
RECIPE = """plugins: [good]
advantage: rloo
policy_loss: stranger
task: {use: sort-letters, letters: 2}
model: {d_model: 8, layers: 1, heads: 2}
rollout: {prompts: 2, samples_per_prompt: 2}
train: {steps: 1}
evaluate: {items: 4}
"""


@pytest.fixture
def both(site, monkeypatch):
    """A good plugin and a broken one, and a recipe that uses the good one."""
    install(site, "good-dist", "1.2", "good_plugin", GOOD, entry="good")
    install(site, "broken-dist", "0.3", "broken_plugin", BROKEN, entry="broken")
    (site / "r.yaml").write_text(RECIPE)
    monkeypatch.chdir(site)
    monkeypatch.setenv("COLUMNS", "80")
    return site


def by_name(out):
    return {p["name"]: p for p in json.loads(out)}


# ── the list ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_plugins_the_list_says_so(site):
    assert run("plugins") == (0, "No plugin is installed; `lossary new-plugin NAME` writes one.\n", "")
    assert run("plugins", "--json") == (0, "[]\n", "")


def test_the_list_tells_state_cause_and_what_each_brings(both, monkeypatch):
    fields = "import lossary.registry as r\n@r.hookimpl\ndef lossary_fields():\n    return [r.column('flag', level='token', doc='')]\n"
    recipes = "@r.hookimpl\ndef lossary_recipes():\n    return {'house': 'policy_loss: grpo'}\n"
    install(both, "words-dist", "2.0", "words", fields + recipes)
    install(both, "newer-dist", "4.0", "newer", f"lossary_api = {API + 1}\n" + GOOD)
    install(both, "out-dist", "1", "out_mod", "raise AssertionError('imported')")
    monkeypatch.setenv("LOSSARY_BLOCK", "out-dist")
    code, out, err = run("plugins")
    assert (code, err) == (1, "")
    assert max(map(len, out.splitlines())) <= 80
    text = " ".join(out.split())
    assert "broken broken-dist 0.3 failed ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 2 of broken_plugin.py)" in text
    assert "good good-dist 1.2 loaded policy_loss: stranger" in text
    assert f"newer newer-dist 4.0 failed is written for API {API + 1} of lossary" in text
    assert "out_mod out-dist 1 blocked LOSSARY_BLOCK names 'out-dist'" in text
    assert "words words-dist 2.0 loaded columns: flag recipes: house" in text
    assert text.endswith("2 loaded, 2 failed, 1 blocked. `lossary plugins -v` shows tracebacks.")
    found = by_name(run("plugins", "--json")[1])
    assert [(n, p["distribution"], p["version"], p["state"]) for n, p in found.items()] == [
        ("broken", "broken-dist", "0.3", "failed"),
        ("good", "good-dist", "1.2", "loaded"),
        ("newer", "newer-dist", "4.0", "failed"),
        ("out_mod", "out-dist", "1", "blocked"),
        ("words", "words-dist", "2.0", "loaded"),
    ]
    assert (found["good"]["components"], found["words"]["columns"], found["words"]["recipes"]) == (
        ["policy_loss/stranger"],
        ["flag"],
        ["house"],
    )
    assert found["broken"]["traceback"].startswith("Traceback")
    assert found["good"]["cause"] is found["good"]["traceback"] is None


def test_v_shows_where_a_plugin_broke(both):
    code, out, _ = run("plugins", "-v")
    assert code == 1
    tail = out[out.index("shows tracebacks.") :]
    assert "\nbroken (broken-dist 0.3)\nTraceback (most recent call last):\n" in tail
    assert 'broken_plugin.py", line 2, in <module>\n    import nowhere_to_be_found\n' in tail
    assert "Traceback" not in run("plugins")[1]


def test_the_list_is_content_when_nothing_failed(both, monkeypatch):
    monkeypatch.setenv("LOSSARY_PLUGINS", "good")
    code, out, _ = run("plugins")
    assert code == 0
    assert "not asked for" in out
    assert out.rstrip().endswith("1 loaded, 1 not asked for.")
    code, out, _ = run("plugins", "--no-plugins")
    assert code == 0
    assert out.rstrip().endswith("2 not asked for.")
    assert "LOSSARY_NO_PLUGINS" not in os.environ  # said for one command only


def test_wide_and_narrow_terminals(both, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    line = next(x for x in run("plugins")[1].splitlines() if "broken-dist" in x)
    assert line.rstrip().endswith("No module named 'nowhere_to_be_found' (line 2 of")
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, run("plugins")[1].splitlines()[:-1])) <= 60


# ── a broken plugin beside a good one ────────────────────────────────────────────────────────────────────────────────


def test_list_with_a_broken_plugin_beside_a_good_one(both):
    with pytest.warns(PluginWarning, match="plugin 'broken' .broken-dist 0.3. did not load"):
        code, out, _ = run("list", "policy_loss", "--json")
    names = {c["name"]: c["distribution"] for c in json.loads(out)}
    assert (code, names["stranger"], names["ppo-clip"]) == (0, "good-dist 1.2", "lossary")


@QUIET
def test_train_with_a_broken_plugin_beside_a_good_one(both):
    code, out, _ = run("train", "r.yaml", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["steps"] == 1


@QUIET
@pytest.mark.parametrize("asked", ["theirs", "broken-dist/theirs", "policy_loss/theirs"])
def test_the_broken_ones_name_is_answered_with_its_cause(both, monkeypatch, capsys, asked):
    code, out, err = ended(monkeypatch, capsys, "show", asked)
    assert (code, out) == (2, "")
    assert "\n  Plugin 'broken' (broken-dist 0.3) did not load: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in err
    (both / "theirs.yaml").write_text(f"policy_loss: {asked.removeprefix('policy_loss/')}\n")
    code, _, err = run("check", "theirs.yaml")
    assert code == 1
    assert "Plugin 'broken' (broken-dist 0.3) did not load" in err


def test_the_command_warns_in_a_sentence(both):
    """One process of its own: what a user sees, and that stdout stays readable for machines."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(both)]).strip(os.pathsep)}
    done = subprocess.run(
        [sys.executable, "-m", "lossary", "list", "kl", "--json"], cwd="/", env=environment, capture_output=True, text=True, check=True
    )
    assert len(json.loads(done.stdout)) > 5
    assert done.stderr == (
        "lossary: plugin 'broken' (broken-dist 0.3) did not load: ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 2 of broken_plugin.py). "
        "`lossary plugins -v` shows the traceback; LOSSARY_BLOCK=broken keeps it out.\n"
    )


# ── --with and --no-plugins ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mine(site, monkeypatch):
    (site / "recipes").mkdir()
    write(site, "recipes/my_losses.py", pl("zigzag", alias="slanted"))
    (site / "recipes" / "r.yaml").write_text("plugins: [my_losses.py]\npolicy_loss: zigzag\n")
    write(site, "my_module.py", pl("bent"))
    monkeypatch.chdir(site)
    monkeypatch.setenv("COLUMNS", "80")
    return site


@pytest.mark.parametrize(
    ("source", "name"),
    [("recipes/my_losses.py", "zigzag"), ("recipes/r.yaml", "zigzag"), ("my_module", "bent"), ("{}/recipes/my_losses.py", "slanted")],
)
def test_a_file_a_module_or_a_recipe_can_be_looked_at(mine, source, name):
    source = source.format(mine)
    code, out, _ = run("list", "policy_loss", "--with", source, "--json")
    assert code == 0
    assert name.replace("slanted", "zigzag") in [c["name"] for c in json.loads(out)]
    assert name.replace("slanted", "zigzag") in run("show", name, "--with", source)[1]
    assert json.loads(run("find", name, "--with", source, "--json")[1])
    assert run("find", name)[0] == 1
    assert name not in lossary.catalog().names("policy_loss")


def test_several_sources_and_a_bundled_recipe(mine):
    found = json.loads(run("list", "--with", "my_module", "--with", "recipes/r.yaml", "--with", "grpo", "--json")[1])
    assert {("bent", "plugin my_module"), ("zigzag", "plugin my_losses.py")} <= {(c["name"], c["distribution"]) for c in found}


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("gone.py", "lossary: plugin 'gone.py': there is no file gone.py."),
        ("gone_module", "lossary: plugin 'gone_module' does not load: ModuleNotFoundError: No module named 'gone_module'"),
        ("recipes/gone.yaml", "lossary: recipes/gone.yaml: there is no such file. Did you mean 'r.yaml'?"),
        ("broken.yaml", "lossary: broken.yaml:1:22: plugins.1: plugin 'gone.py': there is no file"),
    ],
)
def test_what_is_asked_for_and_not_there(mine, monkeypatch, capsys, source, said):
    (mine / "broken.yaml").write_text("plugins: [my_module, gone.py]\n")
    code, out, err = ended(monkeypatch, capsys, "list", "--with", source)
    assert (code, out) == (2, "")
    assert err.startswith(said)


def test_no_plugins_refuses_a_recipes_code_and_nothing_else(mine, monkeypatch, capsys):
    code, _, err = run("check", "recipes/r.yaml", "--no-plugins")
    assert code == 1
    assert (
        "recipes/r.yaml:1:11: plugins.0: plugin 'my_losses.py' is not loaded: no plugins are (--no-plugins or LOSSARY_NO_PLUGINS)." in err
    )
    assert run("check", "recipes/r.yaml")[0] == 0
    assert run("check", "grpo", "--no-plugins")[0] == 0
    (mine / "path.yaml").write_text("policy_loss: {use: 'my_module:bent'}\n")
    code, _, err = run("check", "path.yaml", "--no-plugins")
    assert code == 1
    assert "'my_module:bent' is not imported: no plugins are loaded" in err
    code, _, err = ended(monkeypatch, capsys, "train", "recipes/r.yaml", "--no-plugins")
    assert code == 2
    assert "is not loaded: no plugins are" in err
    code, _, err = ended(monkeypatch, capsys, "show", "zigzag", "--with", "my_module", "--no-plugins")
    assert code == 2
    assert "plugin 'my_module' is not loaded" in err


def test_no_plugins_reaches_workers_by_the_environment(mine, monkeypatch):
    seen = []
    monkeypatch.setattr("lossary.cli.catalog.list_components", lambda *a, **k: seen.append(os.environ.get("LOSSARY_NO_PLUGINS")))
    run("list", "--no-plugins")
    run("list")
    monkeypatch.setenv("LOSSARY_NO_PLUGINS", "yes")
    run("list", "--no-plugins")
    assert seen == ["1", None, "1"]
    assert os.environ["LOSSARY_NO_PLUGINS"] == "yes"
