"""The catalog: an ordinary object, built from plugins, that says who brought what and why something is not there."""

import importlib
import subprocess
import sys
from types import SimpleNamespace

import pytest
from plugin_site import GOOD, Built, brought, first_loss, install, pl, write

from lossary.registry import (
    Catalog,
    Failure,
    Plugin,
    SignatureError,
    UnknownName,
    column,
    component_of,
    hookimpl,
    policy_loss,
)


def missing(book, kind, name):
    with pytest.raises(UnknownName) as caught:
        book.get(kind, name)
    return str(caught.value)


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
        ("misspelt", GOOD.replace("def lossary_components", "def lossary_componets"), "unknown hook 'lossary_componets'"),
        ("wrong_args", GOOD.replace("_components()", "_components(everything)"), "everything"),
        ("undecorated", GOOD.replace("@r.policy_loss(aliases=(\"other_name\",))\n", ""), "which carries no lossary decorator"),
        ("forgot", GOOD.replace("@r.hookimpl\n", ""), "offers nothing"),
        ("undeclared", GOOD.replace("log_prob, advantages)", "log_prob, advantage)"), "Did you mean 'advantages'?"),
        ("badsig", GOOD.replace("log_prob, advantages)", "values)"), "a policy_loss must not read 'values'"),
        ("twice", GOOD.replace("[stranger]", "[stranger, r.policy_loss(name='stranger')(lambda log_prob: 0)]"), "bad-dist 0.1 has two policy_loss called 'stranger'"),
    ],
)  # fmt: skip
def test_a_broken_plugin_breaks_nothing_but_itself(site, module, source, why):
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


def test_two_distributions_with_one_name(site):
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


def test_catalogs_do_not_know_each_other():
    for _ in range(2):
        book = Catalog.load([Built([first_loss])], discover=False)
        assert [c.name for c in book] == ["first-loss"]
        assert Catalog.load(discover=False).names("policy_loss") == []


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["first-loss", "first_loss", "vanilla", "low_var", "low-var", "lossary/first_loss", "lossary/vanilla"])
def test_every_name_finds_the_component(book, name):
    found = book.get("policy_loss", name)
    assert (found.function, found.distribution, found.name) == (first_loss, "lossary", "first-loss")
    assert book.resolve("policy_loss", name) == found


def test_a_name_that_stands_under_another_kind(book):
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


def test_a_loss_that_was_imported_but_never_listed(book, site):
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


def test_a_fresh_process_finds_what_the_plugins_list_names(site):
    write(site, "my_losses.py", pl("half_pg"))
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path; from lossary.registry import Catalog\n"
        "print(Catalog.load(discover=False).with_plugin('my_losses', Path('.')).get('policy_loss', 'half_pg').place)\n"
    )
    out = subprocess.run([sys.executable, "-c", code, str(site)], cwd=site, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "my_losses.py:3"


# ── growing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_same_function_twice_is_fine_another_of_the_same_name_is_not(book):
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


def test_an_alias_counts_as_a_name():
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


# ── what a slot may name besides ─────────────────────────────────────────────────────────────────────────────────────


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
