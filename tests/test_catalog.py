"""The catalog: an ordinary object, built from plugins, that says who brought what and why something is not there."""

import importlib
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from lossary.registry import (
    Catalog,
    Failure,
    Level,
    Plugin,
    PluginError,
    SignatureError,
    UnknownName,
    advantage_estimator,
    column,
    component_of,
    hookimpl,
    kl_estimator,
    policy_loss,
)

GOOD = """
import lossary.registry as r

@r.policy_loss(aliases=("other_name",))
def stranger(log_prob, advantages):
    '''Vanilla.'''
    return -log_prob * advantages

@r.hookimpl
def lossary_components():
    return [stranger]
"""


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder that stands on ``sys.path``; whatever is imported meanwhile is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delenv("LOSSARY_BLOCK", raising=False)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(folder, name, source):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    importlib.invalidate_caches()
    return path


def install(folder, name, version, module, source, entry=None):
    """Write what pip would: a module and a dist-info with an entry point."""
    write(folder, f"{module}.py", source)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[lossary]\n{entry or module} = {module}\n")


def brought(book, distribution):
    return {f"{c.kind.name}/{c.name}" for c in book if c.distribution == distribution}


def missing(book, kind, name):
    with pytest.raises(UnknownName) as caught:
        book.get(kind, name)
    return str(caught.value)


def pl(name, source="return -log_prob * advantages", alias=""):
    traits = f"(aliases=({alias!r},))" if alias else ""
    return f"\nimport lossary.registry as r\n@r.policy_loss{traits}\ndef {name}(log_prob, advantages):\n    {source}\n"


class Built:
    """A plugin that is an object: the built-ins' door."""

    def __init__(self, functions=(), columns=(), recipes=None):
        self.functions, self.columns, self.recipes = functions, columns, recipes or {}
        self.heard = []

    @hookimpl
    def lossary_components(self):
        return self.functions

    @hookimpl
    def lossary_fields(self):
        return self.columns

    @hookimpl
    def lossary_recipes(self):
        return self.recipes

    @hookimpl
    def lossary_event(self, event):
        self.heard.append(event)


@policy_loss(aliases=("vanilla", "low_var"))
def first_loss(log_prob, advantages):
    """The first."""
    return -log_prob * advantages


@kl_estimator
def k9(log_prob, ref_log_prob):
    return log_prob - ref_log_prob


def named(name, function=None):
    def f(log_prob, advantages):
        return -log_prob * advantages

    return policy_loss(name=name)(function or f)


# ── installed plugins ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plugin_enters_under_its_distribution(site):
    install(site, "good-dist", "1.2", "good_one", GOOD)
    book = Catalog.load()
    made = book.get("policy_loss", "stranger")
    assert (made.distribution, made.summary, made.place) == ("good-dist 1.2", "Vanilla.", "good_one.py:4")
    assert Plugin("good_one", "good-dist 1.2", ("policy_loss/stranger",)) in book.plugins
    for name in ("other-name", "other_name", "good-dist/stranger", "good_dist/other_name"):
        assert book.get("policy_loss", name).function is made.function
    assert {"stranger", "other-name"} <= set(book.names("policy_loss"))
    assert [c.name for c in book if c.distribution == "good-dist 1.2"] == ["stranger"]


@pytest.mark.parametrize(
    ("module", "source", "why"),
    [
        ("bad_import", "import nowhere_to_be_found", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
        ("quits", "raise SystemExit(3)", "SystemExit: 3"),
        ("typo_plugin", "undefined_name", "NameError: name 'undefined_name' is not defined"),
        ("bad_syntax", "def f(:", "SyntaxError: "),
        ("raising", GOOD.replace("return [stranger]", "return 1 / 0"), "ZeroDivisionError: division by zero"),
        ("misspelt", GOOD.replace("def lossary_components", "def lossary_componets"), "PluginError: plugin 'misspelt' (bad-dist 0.1): unknown hook"),
        ("wrong_args", GOOD.replace("_components()", "_components(everything)"), "PluginError: plugin 'wrong_args' (bad-dist 0.1): "),
        ("undecorated", GOOD.replace("@r.policy_loss(aliases=(\"other_name\",))\n", ""), "which carries no lossary decorator"),
        ("forgot", GOOD.replace("@r.hookimpl\n", ""), "PluginError: plugin 'forgot' (bad-dist 0.1) offers nothing"),
        ("undeclared", GOOD.replace("log_prob, advantages)", "log_prob, advantage)"), "Did you mean 'advantages'?"),
        ("badsig", GOOD.replace("log_prob, advantages)", "values)"), "a policy_loss must not read 'values'"),
        ("twice", GOOD.replace("[stranger]", "[stranger, r.policy_loss(name='stranger')(lambda log_prob: 0)]"), "bad-dist 0.1 has two policy_loss called 'stranger'"),
    ],
)  # fmt: skip
def test_plugin_O1_O3_a_broken_plugin_breaks_nothing_but_itself(site, module, source, why):
    install(site, "good-dist", "1.2", "good_one", GOOD)
    install(site, "bad-dist", "0.1", module, source)
    book = Catalog.load()
    assert brought(book, "good-dist 1.2") == {"policy_loss/stranger"}
    assert brought(book, "bad-dist 0.1") == set()
    (failure,) = [f for f in book.failures if f.distribution == "bad-dist 0.1"]
    assert failure.plugin == module
    assert why in failure.why
    assert "Traceback" in failure.traceback
    text = missing(book, "policy_loss", "theirs")
    assert f"Plugin {module!r} (bad-dist 0.1) did not load: {failure.why}" in text


def test_a_plugin_enters_whole_or_not_at_all(site):
    source = GOOD + "\n@r.hookimpl\ndef lossary_fields():\n    return [r.column('half', level='token', doc='')]\n"
    install(site, "half-dist", "1", "half", source + "\n@r.hookimpl\ndef lossary_recipes():\n    return ['no mapping']\n")
    book = Catalog.load()
    assert brought(book, "half-dist 1") == set()
    assert "half" not in book.fields
    assert not [p for p in book.plugins if p.name == "half"]
    assert [f.plugin for f in book.failures] == ["half"]


def test_plugin_O4_two_distributions_with_one_name(site):
    for name in ("dist-a", "dist-b"):
        install(
            site,
            name,
            "1",
            f"{name.replace('-', '_')}_mod",
            pl("tilted") + "\n@r.hookimpl\ndef lossary_components():\n    return [tilted]\n",
        )
    book = Catalog.load()
    text = missing(book, "policy_loss", "tilted")
    assert text == "The policy_loss 'tilted' comes from dist-a 1 and dist-b 1. Say which: dist-a/tilted and dist-b/tilted."
    assert book.get("policy_loss", "dist_b/tilted").distribution == "dist-b 1"
    assert book.get("policy_loss", "dist-a/tilted").distribution == "dist-a 1"
    text = missing(book, "policy_loss", "dist-c/tilted")
    assert "'tilted' comes from dist-a 1 and dist-b 1: say dist-a/tilted and dist-b/tilted." in text
    assert "registered as" not in text


def test_a_strangers_component_may_bear_the_name_of_a_built_in(site):
    install(site, "greedy-dist", "9", "greedy", GOOD.replace("def stranger", "def first_loss").replace("[stranger]", "[first_loss]"))
    book = Catalog.load([Built([first_loss])])
    text = missing(book, "policy_loss", "first-loss")
    assert "comes from greedy-dist 9 and lossary. Say which: greedy-dist/first-loss and lossary/first-loss." in text
    assert book.get("policy_loss", "lossary/first_loss").function is first_loss
    assert book.get("policy_loss", "vanilla").function is first_loss
    assert len([c for c in book if c.name == "first-loss"]) == 2


@pytest.mark.parametrize("block", ["bad_one", "bad-dist", "bad_dist", "bad-one", "x, bad-dist ,"])
def test_a_plugin_can_be_blocked_before_it_is_imported(site, monkeypatch, block):
    install(site, "bad-dist", "0.1", "bad_one", "raise RuntimeError")
    assert Catalog.load().failures
    monkeypatch.setenv("LOSSARY_BLOCK", block)
    assert not Catalog.load().failures
    assert "bad_one" not in sys.modules
    assert Catalog.load(block=[]).failures
    assert not Catalog.load(discover=False, block=[]).failures


@pytest.mark.parametrize("block", ["policy_loss/first-loss", "policy-loss/first_loss", "policy_loss/vanilla"])
def test_a_single_component_can_be_blocked_with_all_its_names(block):
    book = Catalog.load([Built([first_loss, named("second")])], discover=False, block=[block])
    assert book.names("policy_loss") == ["second"]
    assert [c.name for c in book] == ["second"]
    assert "No policy_loss is called 'vanilla'" in missing(book, "policy_loss", "vanilla")


def test_plugins_are_taken_in_a_fixed_order_and_equal_entry_names_do_not_collide(site):
    for dist, module, loss in (("b-dist", "b_mod", "bee"), ("a-dist", "a_mod", "ant")):
        install(site, dist, "1", module, GOOD.replace("stranger", loss).replace("other_name", f"{loss}_too"), entry="default")
    book = Catalog.load()
    ours = [(p.name, p.distribution) for p in book.plugins if p.name == "default"]
    assert ours == [("default", "a-dist 1"), ("default", "b-dist 1")]
    assert {"ant", "bee"} <= set(book.names("policy_loss"))


def test_registry_O7_catalogs_do_not_know_each_other():
    for _ in range(2):
        book = Catalog.load([Built([first_loss])], discover=False)
        assert [c.name for c in book] == ["first-loss"]
        assert Catalog.load(discover=False).names("policy_loss") == []


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def book():
    return Catalog.load([Built([first_loss, k9])], discover=False)


@pytest.mark.parametrize("name", ["first-loss", "first_loss", "vanilla", "low_var", "low-var", "lossary/first_loss", "lossary/vanilla"])
def test_every_name_finds_the_component(book, name):
    found = book.get("policy_loss", name)
    assert (found.function, found.distribution, found.name) == (first_loss, "lossary", "first-loss")
    assert book.resolve("policy_loss", name) == found


def test_registry_O3_a_name_that_stands_under_another_kind(book):
    text = missing(book, "policy_loss", "k9")
    assert text.startswith("No policy_loss is called 'k9'. 'k9' is registered as kl.")
    assert "Known: first-loss, low-var, vanilla." in text
    assert missing(book, "policy_loss", "kl/k9").count("registered as kl") == 1


def test_an_unknown_name_says_what_is_nearest_or_known(book):
    assert missing(book, "policy_loss", "frist_loss") == "No policy_loss is called 'frist_loss'. Did you mean 'first-loss'?"
    assert missing(book, "policy_loss", "zzz") == "No policy_loss is called 'zzz'. Known: first-loss, low-var, vanilla."
    assert missing(book, "reward", "zzz") == "No reward is called 'zzz'. Known: none."
    text = missing(book, "policy_los", "first-loss")
    assert text.startswith("There is no kind 'policy_los'. Did you mean 'policy_loss'? Kinds are ")


def test_registry_O1_a_loss_that_was_imported_but_never_listed(book, site):
    write(site, "my_losses.py", pl("half_pg"))
    importlib.import_module("my_losses")
    text = missing(book, "policy_loss", "half_pg")
    assert "The module 'my_losses' defines it: name it under plugins" in text
    assert "defines it" not in missing(book, "kl", "half_pg")
    grown = book.with_plugin("my_losses", site)
    assert grown.get("policy_loss", "half_pg").distribution == "plugin my_losses"
    write(site, "own.py", pl("quarter_pg"))
    book.with_plugin("own.py", site)
    assert "The module 'own.py' defines it" in missing(book, "policy_loss", "quarter_pg")


def test_registry_O1_a_fresh_process_finds_what_the_plugins_list_names(site):
    write(site, "my_losses.py", pl("half_pg"))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from lossary.registry import Catalog\n"
        "print(Catalog.load(discover=False).with_plugin('my_losses', Path('.')).get('policy_loss', 'half_pg').place)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(site)], cwd=site, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "my_losses.py:3"


# ── growing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_registry_O5_the_same_function_twice_is_fine_another_of_the_same_name_is_not(book):
    mine, other = named("mine"), named("mine")
    grown = book.extended([mine]).extended([mine, mine])
    assert grown.get("policy_loss", "mine").distribution == "this script"
    with pytest.raises(SignatureError) as caught:
        grown.extended([other])
    text = str(caught.value)
    assert "this script has two policy_loss called 'mine'" in text
    assert text.count(component_of(mine).place) >= 1
    assert component_of(other).place in text
    assert text.endswith("Rename one.")


def test_registry_O5_an_alias_counts_as_a_name():
    twin = named("vanilla")
    with pytest.raises(SignatureError, match="two policy_loss called 'vanilla'"):
        Catalog().extended([first_loss, twin])
    assert Catalog().extended([first_loss, named("first_loss_too")]).names("policy_loss") == [
        "first-loss",
        "first-loss-too",
        "low-var",
        "vanilla",
    ]


def test_a_script_may_shadow_nothing_in_silence(book):
    mine = named("first_loss")
    grown = book.extended([mine])
    assert "Say which: lossary/first-loss and this-script/first-loss." in missing(grown, "policy_loss", "first_loss")
    assert grown.get("policy_loss", "this-script/first_loss").function is mine


def test_a_catalog_is_never_changed(book, site):
    write(site, "own.py", pl("own") + "extra = r.column('extra', level='token', doc='')\n")
    before = (list(book), book.names("policy_loss"), list(book.fields), list(book.plugins), dict(book.recipes()))
    grown = book.extended([named("mine")], [column("flag", level="sequence", doc="")]).with_plugin("own.py", site)
    assert {"mine", "own"} <= set(grown.names("policy_loss"))
    assert {"flag", "extra"} <= set(grown.fields)
    assert [p.name for p in grown.plugins] == [*(p.name for p in book.plugins), "own.py"]
    with pytest.raises(SignatureError):
        grown.extended([named("fresh"), named("fresh")])
    assert (list(book), book.names("policy_loss"), list(book.fields), list(book.plugins), dict(book.recipes())) == before
    assert "fresh" not in grown.names("policy_loss")


def test_extended_takes_only_decorated_functions(book):
    with pytest.raises(SignatureError, match="carries no lossary decorator; write @policy_loss"):
        book.extended([len])
    with pytest.raises(SignatureError, match="column 'flag' of a test is already declared with another meaning"):
        book.extended(columns=[column("flag", level="token", doc=""), column("flag", level="sequence", doc="")], brought="a test")


# ── a recipe's plugins ───────────────────────────────────────────────────────────────────────────────────────────────


def plugin_error(book, name, folder):
    with pytest.raises(PluginError) as caught:
        book.with_plugin(name, folder)
    return str(caught.value)


def test_a_file_beside_the_recipe(book, site):
    source = pl("first", alias="uno") + pl("second") + "flag = r.column('flag', level='sequence', doc='')\nagain = second\n"
    write(site, "sub/own_losses.py", source)
    grown = book.with_plugin("sub/own_losses.py", site)
    assert brought(grown, "plugin sub/own_losses.py") == {"policy_loss/first", "policy_loss/second"}
    assert grown.plugins[-1] == Plugin("sub/own_losses.py", "plugin sub/own_losses.py", ("policy_loss/first", "policy_loss/second"))
    assert grown.fields["flag"].level is Level.SEQUENCE
    assert grown.get("policy_loss", "own_losses/uno").name == "first"
    assert "own_losses" not in sys.modules


def test_equal_file_names_of_two_recipes_do_not_meet(book, site):
    for folder, value in (("a", 1), ("b", 2)):
        write(site, f"{folder}/own.py", pl("mine", f"return {value}"))
    one, two = book.with_plugin("own.py", site / "a"), book.with_plugin("own.py", site / "b")
    assert [c.get("policy_loss", "mine").function(0, 0) for c in (one, two)] == [1, 2]


def test_a_file_is_read_anew_for_each_catalog(book, site):
    path = write(site, "own.py", pl("mine", "return 1"))
    assert book.with_plugin("own.py", site).get("policy_loss", "mine").function(0, 0) == 1
    path.write_text(pl("mine", "return 22"))
    assert book.with_plugin("own.py", site).get("policy_loss", "mine").function(0, 0) == 22


def test_what_a_plugin_merely_imports_is_not_its_own(book, site):
    write(site, "elsewhere.py", pl("foreign"))
    write(site, "own.py", "from elsewhere import foreign\n" + pl("mine"))
    grown = book.with_plugin("own.py", site)
    assert brought(grown, "plugin own.py") == {"policy_loss/mine"}
    both = book.with_plugin("elsewhere", site).with_plugin("own.py", site)
    assert both.get("policy_loss", "foreign").distribution == "plugin elsewhere"


def test_a_package_brings_what_its_own_modules_define(book, site):
    write(site, "my_pkg/losses.py", pl("inner"))
    write(site, "my_pkg/__init__.py", "from my_pkg.losses import inner\n" + pl("outer"))
    grown = book.with_plugin("my_pkg", site)
    assert brought(grown, "plugin my_pkg") == {"policy_loss/inner", "policy_loss/outer"}
    assert grown.get("policy_loss", "my-pkg/inner").name == "inner"
    assert book.with_plugin("my_pkg.losses", site).names("policy_loss").count("inner") == 1


def test_hooks_of_a_recipes_plugin_say_more_than_its_names(book, site):
    source = pl("hidden") + pl("offered") + "\n@r.hookimpl\ndef lossary_components():\n    return [offered]\n"
    write(site, "hooked.py", source)
    assert brought(book.with_plugin("hooked.py", site), "plugin hooked.py") == {"policy_loss/offered"}


def test_two_functions_with_one_name_in_one_file(book, site):
    write(site, "own.py", pl("mine") + pl("other").replace("@r.policy_loss", "@r.policy_loss(name='mine')"))
    text = plugin_error(book, "own.py", site)
    assert "plugin own.py has two policy_loss called 'mine': at own.py:3 and at own.py:8. Rename one." in text


def test_a_missing_file_names_the_nearest(book, site):
    write(site, "own_losses.py", pl("mine"))
    text = plugin_error(book, "own_loses.py", site)
    assert f"plugin 'own_loses.py': there is no file {site / 'own_loses.py'}. Did you mean 'own_losses.py'?" in text
    assert "there is no file" in plugin_error(book, "nowhere/x.py", site)
    text = plugin_error(book, "own_losses_not_here", site)
    assert "does not load: ModuleNotFoundError: No module named 'own_losses_not_here'" in text


def test_a_module_name_where_a_file_was_meant(book, tmp_path):
    write(tmp_path, "beside.py", pl("mine"))
    assert "There is a file beside.py beside the recipe: write 'beside.py'." in plugin_error(book, "beside", tmp_path)


@pytest.mark.parametrize("name", ["my_losses", "my_losses.py"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\nimport fancy_dep\n", "ModuleNotFoundError: No module named 'fancy_dep' (line 2 of my_losses.py)"),
        ("x = 1\ny = 2\nundefined\n", "NameError: name 'undefined' is not defined (line 3 of my_losses.py)"),
        ("def f():\n    raise KeyError('k')\nf()\n", "KeyError: 'k' (line 2 of my_losses.py)"),
        ("def f(:\n", "(my_losses.py, line 1)"),
        ("raise SystemExit(2)", "SystemExit: 2 (line 1 of my_losses.py)"),
        (pl("half_pg").replace("log_prob, advantages)", "values)"), "my_losses.py:3: policy_loss 'half-pg': a policy_loss must not read 'values'"),
        (pl("half_pg").replace("log_prob, advantages)", "log_porb)"), "my_losses.py:3: policy_loss 'half-pg' asks for the column 'log_porb'"),
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_components():\n    return 1 / 0\n", "ZeroDivisionError: division by zero (line 4 of my_losses.py)"),
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_componets():\n    return []\n", "unknown hook 'lossary_componets'"),
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_event(events):\n    return []\n", "Known hooks are lossary_components, lossary_event, lossary_fields and lossary_recipes."),
        ("x = 1\n", "offers nothing; expected a decorated function, a column(...) or a hook."),
        (pl("f") + "r.column('rewards', level='token', doc='')\n", "column 'rewards' is already in the vocabulary"),
    ],
)  # fmt: skip
def test_registry_O6_plugin_O5_a_named_plugin_that_does_not_load_raises_with_its_cause(book, site, name, source, said):
    write(site, "my_losses.py", source)
    text = plugin_error(book, name, site)
    assert text.startswith(f"plugin {name!r}")
    assert said in text
    assert not [m for m in sys.modules if m.startswith("lossary_plugin_my_losses")] or "my_losses.py" in name


def test_half_a_module_is_not_left_behind(book, site):
    write(site, "broken_half.py", "x = 1\nraise ValueError\n")
    plugin_error(book, "broken_half.py", site)
    assert not [m for m in sys.modules if "broken_half" in m]


def test_a_relative_folder_still_tells_the_line(book, site, monkeypatch):
    from pathlib import Path

    write(site, "rel.py", "\n\nboom\n")
    monkeypatch.chdir(site)
    assert "(line 3 of rel.py)" in plugin_error(book, "rel.py", Path())


# ── what a slot may name besides ─────────────────────────────────────────────────────────────────────────────────────


def test_registry_O4_contract_O3_an_import_path_and_a_callable_are_the_same_component(book, site):
    write(site, "my_pkg/__init__.py", "")
    write(
        site,
        "my_pkg/losses.py",
        "def tilted(log_prob, advantages, *, tau: float = 0.5):\n    return -tau * log_prob * advantages\n" + pl("marked"),
    )
    by_path = book.resolve("policy_loss", "my_pkg.losses:tilted")
    from my_pkg.losses import marked, tilted

    by_object = book.resolve("policy_loss", tilted)
    assert by_path.function is by_object.function is tilted
    assert (by_path.distribution, by_object.distribution) == ("module my_pkg.losses", "this script")
    assert by_path.params().model_dump() == by_object.params().model_dump() == {"tau": 0.5}
    assert by_path.inputs == by_object.inputs
    assert book.resolve("policy_loss", "my_pkg.losses:marked").function is marked
    assert book.resolve("policy_loss", "my_pkg.losses:marked").name == "marked"


def test_contract_O4_the_resolved_object_is_the_users():
    class Mine:
        def __call__(self, log_prob, advantages):
            return log_prob

    mine = Mine()
    assert Catalog().resolve("policy_loss", mine).function is mine
    assert Catalog().resolve("policy_loss", first_loss).aliases == ("vanilla", "low-var")


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("nowhere_at_all:f", "'nowhere_at_all:f' cannot be imported: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("paths_mod:tiltd", "'paths_mod:tiltd': the module has no 'tiltd'. Did you mean 'tilted'?"),
        ("paths_mod:number", "'paths_mod:number' is no function but int."),
        ("paths_broken:f", "cannot be imported: ZeroDivisionError: division by zero (line 2 of paths_broken.py)"),
    ],
)
def test_an_import_path_that_leads_nowhere(book, site, path, said):
    write(site, "paths_mod.py", "number = 3\ndef tilted(log_prob): ...\n")
    write(site, "paths_broken.py", "x = 1\n1 / 0\n")
    with pytest.raises(UnknownName, match=re.escape(said)):
        book.resolve("policy_loss", path)


def test_a_component_of_another_kind_does_not_fit_the_slot(book):
    with pytest.raises(UnknownName, match=f"test_catalog.py:{k9.__code__.co_firstlineno}: 'k9' is a kl, no policy_loss"):
        book.resolve("policy_loss", k9)


def test_an_undecorated_callable_is_held_to_the_contract(book):
    def tilted(batch, params): ...

    def needs_values(values): ...

    with pytest.raises(SignatureError, match="asks for the column 'batch', which nobody declared"):
        book.resolve("policy_loss", tilted)
    with pytest.raises(SignatureError, match="must not read 'values'"):
        book.resolve("policy_loss", needs_values)


def test_contract_O2_an_estimator_may_read_a_column_of_its_own():
    valid = column("valid", level="sequence", doc="whether the sample counts")

    @advantage_estimator
    def valid_only(rewards, valid, sequences):
        kept = rewards * valid
        mean = sequences.group_mean(kept) * sequences.group_size() / sequences.group_sum(valid)
        return valid * (rewards - sequences.group_spread(mean))

    with pytest.raises(SignatureError, match=r"column 'valid', which nobody declared.*declared by column\('valid'"):
        Catalog().extended([valid_only])
    made = Catalog().extended([valid_only], [valid]).get("advantage", "valid_only")
    from lossary.batch import Batch

    batch = Batch.from_packed(
        [1, 1, 1], fields=[valid], valid=torch.tensor([True, False, True]), rewards=torch.tensor([1.0, 9.0, 3.0]), group_ids=[0, 0, 0]
    )
    out = made.function(*(batch.sequences if n == "sequences" else batch[n] for n in made.columns))
    assert out.tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-6)


# ── recipes and events ───────────────────────────────────────────────────────────────────────────────────────────────


def test_recipes_of_plugins_are_kept_with_their_distribution(site):
    write(
        site, "with_recipe.py", "import lossary.registry as r\n@r.hookimpl\ndef lossary_recipes():\n    return {'mine': 'policy_loss: x'}\n"
    )
    one = Catalog.load([Built(recipes={"mine": "policy_loss: y"})], discover=False)
    two = one.with_plugin("with_recipe.py", site)
    assert two.recipes() == {"mine": [("lossary", "policy_loss: y"), ("plugin with_recipe.py", "policy_loss: x")]}
    assert one.recipes() == {"mine": [("lossary", "policy_loss: y")]}


def test_events_reach_every_plugin_and_those_of_grown_catalogs():
    built = Built([first_loss])
    book = Catalog.load([built], discover=False)
    book.extended([named("more")]).announce({"event": "step", "step": 1})
    book.announce({"event": "end", "step": 2})
    assert built.heard == [{"event": "step", "step": 1}, {"event": "end", "step": 2}]


def test_built_ins_enter_by_the_same_door_and_break_loudly():
    broken = SimpleNamespace(__name__="broken", lossary_components=hookimpl(lambda: [first_loss, len]))
    with pytest.raises(SignatureError, match=r"plugin 'broken' offers .* which carries no lossary decorator"):
        Catalog.load([broken], discover=False)
    quiet = SimpleNamespace(__name__="quiet")
    assert Catalog.load([quiet], discover=False).plugins == [Plugin("quiet", "lossary", ())]


def test_a_failure_is_plain_data():
    failure = Failure("p", "d 1", "ImportError: x", "Traceback")
    assert (failure.plugin, failure.distribution, failure.why, failure.traceback) == ("p", "d 1", "ImportError: x", "Traceback")
