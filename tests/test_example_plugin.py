"""The example of a plugin: taken in as a module, and as a wheel that is installed, used and uninstalled again."""

import json
import re
import tomllib

import pytest
import torch
import yaml
from blocks import blocks
from plugin_env import EXAMPLE, Environment, copied

import lossary
from lossary import builtin
from lossary.pipeline import load_recipe
from lossary.registry import ColumnError, RecipeError, column
from lossary.tasks import Item, spell_backward
from lossary.tasks.brought import filled, own_columns
from lossary.trainer.loop import train
from lossary.trainer.settings import Settings

BRINGS = {
    "policy_loss/doubt-clip", "policy_loss/rollback", "advantage/trusted-baseline", "aggregation/trusted-mean", "task/doubtful-judge",
}  # fmt: skip
RECIPE = yaml.safe_load((EXAMPLE / "src" / "lossary_doubt" / "doubt.yaml").read_text())
SHORT = ["train.steps=2", "warm_up.steps=1", "rollout.prompts=4", "evaluate.items=4", "model={d_model: 8, layers: 1, heads: 2}"]


@pytest.fixture
def beside(site, monkeypatch):
    """The package as a module that can be imported, not installed."""
    copied(EXAMPLE / "src" / "lossary_doubt", site / "lossary_doubt")
    return site


# ── taken in as a module ─────────────────────────────────────────────────────────────────────────────────────────────


def test_it_has_all_that_a_plugin_may_have(beside):
    book = lossary.catalog().with_plugin("lossary_doubt", beside)
    (plugin,) = [p for p in book.plugins if p.name == "lossary_doubt"]
    assert set(plugin.components) == BRINGS
    assert plugin.columns == ("trust",)
    assert plugin.recipes == ("doubt",)
    assert book.fields["trust"].doc.startswith("how far the grade")
    ours = {c.name for c in lossary.catalog()}
    assert not ours & {name.partition("/")[2] for name in BRINGS}


def test_the_bundled_trainer_fills_its_column(beside, tmp_path):
    _, lines = train(Settings.of(load_recipe({**RECIPE, "plugins": ["lossary_doubt"]}, SHORT)), tmp_path / "runs")
    width = lines[-1]["actor/clip_width"]
    assert 0.5 <= width <= 0.75  # the trust of words of six to three letters


def test_other_tasks_bring_no_trust_and_everything_is_trusted(beside, tmp_path):
    recipe = {**RECIPE, "plugins": ["lossary_doubt"], "task": "spell-backward"}
    _, lines = train(Settings.of(load_recipe(recipe, SHORT)), tmp_path / "runs")
    assert lines[-1]["actor/clip_width"] == 1


# ── tasks that fill columns ──────────────────────────────────────────────────────────────────────────────────────────


class Filling:
    """A task that fills columns."""

    def __init__(self, **columns):
        self.columns = columns


VOCABULARY = lossary.catalog().fields.extended(
    [
        column("zeal", level="sequence", doc=""),
        column("by_token", level="token", doc=""),
        column("many", level="sequence", doc="", wide=True),
    ]
)


def test_a_task_fills_a_column_for_each_answer():
    batch = lossary.Batch.from_packed([2, 1], rewards=torch.tensor([1.0, 0.0]))
    task = Filling(zeal=lambda item, said: len(item.answer) + 10 * len(said))
    made = filled(task, batch, [Item("a", "xx"), Item("b", "x")], ["abc", ""], VOCABULARY)
    assert made["zeal"].tolist() == [32.0, 1.0]
    assert filled(spell_backward(), batch, [], [], VOCABULARY) is batch


@pytest.mark.parametrize(
    ("name", "say"),
    [
        ("zeel", "which nobody declared: return it from lossary_fields()"),
        ("rewards", "which is not its own"),
        ("by_token", "it can fill only columns of one real number per sequence"),
        ("many", "it can fill only columns of one real number per sequence"),
    ],
)
def test_a_column_that_a_task_cannot_fill(name, say):
    with pytest.raises(ColumnError, match=re.escape(say)):
        own_columns(Filling(**{name: lambda item, said: 0.0}), VOCABULARY)


def test_a_value_that_is_not_finite_is_refused():
    batch = lossary.Batch.from_packed([1], rewards=torch.tensor([1.0]))
    with pytest.raises(ColumnError, match="'zeal' with a value that is not finite"):
        filled(Filling(zeal=lambda item, said: float("nan")), batch, [Item("a", "b")], ["b"], VOCABULARY)


def test_what_a_task_cannot_fill_is_a_fault_of_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(
        "from lossary import task\nfrom lossary.tasks import spell_backward\n\n"
        "@task\ndef eager():\n    made = spell_backward()\n    object.__setattr__(made, 'columns', {'zeal': len})\n    return made\n"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text("plugins: [own.py]\npolicy_loss: reinforce\nadvantage: grpo\ntask: eager\n")
    with pytest.raises(RecipeError, match="the task fills the column 'zeal', which nobody declared"):
        Settings.of(load_recipe(recipe))


def test_a_column_that_no_task_fills_is_still_a_fault(tmp_path):
    (tmp_path / "own.py").write_text(
        "from lossary import PerToken, column, policy_loss\n\nzeal = column('zeal', level='sequence', doc='')\n\n"
        "@policy_loss\ndef eager(log_prob: PerToken, zeal: PerToken):\n    return -zeal * log_prob\n"
    )
    recipe = tmp_path / "r.yaml"
    recipe.write_text("plugins: [own.py]\npolicy_loss: eager\ntask: spell-backward\n")
    with pytest.raises(RecipeError, match="needs the column 'zeal', which the bundled trainer does not make"):
        Settings.of(load_recipe(recipe))


# ── what it says of itself ───────────────────────────────────────────────────────────────────────────────────────────


def test_its_readme_names_all_that_it_brings():
    text = (EXAMPLE / "README.md").read_text("utf-8")
    named = set(re.findall(r"^\| `([\w-]+)` \| (\w+(?: loss)?) \|", text, re.M))
    kinds = {kind.replace("_", " ") + "/" + name for kind, _, name in (b.partition("/") for b in BRINGS)}
    assert {f"{kind}/{name}" for name, kind in named} == kinds | {"recipe/doubt", "column/trust"}


def test_its_readmes_code_runs(beside, monkeypatch):
    (code,) = [b.text for b in blocks((EXAMPLE / "README.md").read_text("utf-8")) if b.language == "python"]
    book = lossary.catalog().with_plugin("lossary_doubt", beside)
    monkeypatch.setattr(builtin, "catalog", lambda: book)  # as if it were installed
    scope = {"__name__": "readme"}
    exec(compile(code, "README", "exec"), scope)
    assert scope["batch"]["trust"].tolist() == pytest.approx([1.0, 1 / 3, 1.0, 1 / 3])
    assert scope["batch"]["advantages"].tolist() == pytest.approx([0.25, -0.25, -0.25, 0.25], abs=1e-6)


# ── the wheel ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_the_wheel_is_installed_used_and_uninstalled_again(tmp_path):
    source = copied(EXAMPLE, tmp_path / "source")
    env = Environment(tmp_path / "env")
    wheel = env.install(source, tmp_path / "dist")
    version = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["version"]
    assert wheel.name == f"lossary_doubt-{version}-py3-none-any.whl"
    here = tmp_path / "work"
    here.mkdir()

    listed = env.run("lossary", "plugins", "--json", cwd=here)
    (row,) = [r for r in json.loads(listed.out) if r["name"] == "doubt"]
    assert (row["distribution"], row["version"], row["state"]) == ("lossary-doubt", version, "loaded")
    assert (set(row["components"]), row["columns"], row["recipes"]) == (BRINGS, ["trust"], ["doubt"])
    names = {f"{c['kind']}/{c['name']}": c["distribution"] for c in json.loads(env.run("lossary", "list", "--json", cwd=here).out)}
    assert {name for name, who in names.items() if who == f"lossary-doubt {version}"} == BRINGS

    (here / "mine.yaml").write_text(
        "advantage: lossary-doubt/trusted-baseline\npolicy_loss: {use: rollback, slope: 0.1}\naggregation: trusted-mean\n"
        "task: doubtful-judge\n"
    )
    for recipe in ("mine.yaml", "lossary-doubt/doubt"):
        checked = env.run("lossary", "check", recipe, cwd=here)
        assert checked.code == 0, checked.text
        assert "trusted-baseline" in checked.out
    trained = env.run("lossary", "train", "mine.yaml", *SHORT, "--json", cwd=here)
    assert trained.code == 0, trained.text
    assert json.loads(trained.out.splitlines()[-1])["steps"] == 2

    tests = env.run("pytest", "-q", cwd=source)
    assert tests.code == 0, tests.text
    for words in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)):
        done = env.run(*words, cwd=source)
        assert done.code == 0, done.text

    assert env.run("pip", "uninstall", "--yes", "--quiet", "lossary-doubt", cwd=here).code == 0
    assert [r for r in json.loads(env.run("lossary", "plugins", "--json", cwd=here).out) if r["name"] == "doubt"] == []
    gone = env.run("lossary", "check", "mine.yaml", cwd=here)
    assert gone.code == 1
    assert "No policy_loss is called 'rollback'" in gone.err
    assert "No advantage is called 'lossary-doubt/trusted-baseline'" in gone.err
    assert "doubt: no recipe has this name." in env.run("lossary", "check", "doubt", cwd=here).err
