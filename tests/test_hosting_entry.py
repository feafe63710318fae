"""Which strangers enter, who is kept out, and who brought what."""

import sys
from types import MappingProxyType

import pytest
from plugin_site import GOOD, Built, first_loss, install, pl, write

import lossary
from lossary import Catalog, LossaryError, PluginError, RecipeError, UnknownName
from lossary.registry import PluginWarning, Selection, column, component_of, fingerprint

HOOK = "import lossary.registry as r\n@r.hookimpl\ndef {}():\n    return {}\n"


# ── who enters ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def three(site):
    for name in ("ant", "bee", "cow"):
        install(site, f"{name}-dist", "1", f"{name}_mod", GOOD.replace("stranger", name).replace("other_name", f"{name}2"))
    return site


def taken(book):
    return [p.distribution for p in book.plugins]


@pytest.mark.parametrize(
    ("said", "enter"),
    [
        (None, ["ant-dist 1", "bee-dist 1", "cow-dist 1"]),
        ("", []),
        (" , ", []),
        ("bee-dist", ["bee-dist 1"]),
        ("Bee_Dist, cow_mod", ["bee-dist 1", "cow-dist 1"]),
    ],
)
def test_only_the_named_plugins_are_imported(three, monkeypatch, said, enter):
    if said is not None:
        monkeypatch.setenv("LOSSARY_PLUGINS", said)
    book = Catalog.load()
    assert taken(book) == enter
    assert [m for m in ("ant_mod", "bee_mod", "cow_mod") if m in sys.modules] == [f"{d[:3]}_mod" for d in enter]
    assert {s.state for s in book.skipped} == ({"not asked for"} if len(enter) < 3 else set())
    assert book.failures == []


def test_a_named_plugin_that_is_not_installed_did_not_load(three, monkeypatch):
    monkeypatch.setenv("LOSSARY_PLUGINS", "bee-dist,ant-dits")
    (failure,) = Catalog.load().failures
    assert str(failure) == (
        "plugin 'ant-dits' (not installed) did not load: LOSSARY_PLUGINS names it, and no installed plugin is called so. Did you mean 'ant-dist'?"
    )


def test_blocking_wins_over_asking_and_a_block_that_blocks_nothing_is_told(three, monkeypatch):
    monkeypatch.setenv("LOSSARY_PLUGINS", "ant-dist,bee-dist")
    monkeypatch.setenv("LOSSARY_BLOCK", "bee_mod,cow,policy_loss/atn")
    book = Catalog.load()
    assert taken(book) == ["ant-dist 1"]
    assert [(s.distribution, s.state, s.why) for s in book.skipped] == [
        ("bee-dist 1", "blocked", "LOSSARY_BLOCK names 'bee_mod'"),
        ("cow-dist 1", "not asked for", "LOSSARY_PLUGINS names 'ant-dist', 'bee-dist'"),
    ]
    assert book.notes == [
        "LOSSARY_BLOCK names 'cow', which blocks nothing. Did you mean 'cow-mod'?",
        "LOSSARY_BLOCK names 'policy_loss/atn', which blocks nothing. Did you mean 'policy_loss/ant'?",
    ]
    with pytest.raises(UnknownName, match=r"Plugin 'bee_mod' .bee-dist 1. is blocked: LOSSARY_BLOCK names 'bee_mod'"):
        book.get("policy_loss", "bee-dist/bee")


def test_a_blocked_component_says_by_what(three):
    book = Catalog.load(block=["policy_loss/bee-dist/bee2"])
    with pytest.raises(
        UnknownName, match=r"LOSSARY_BLOCK names 'policy_loss/bee-dist/bee2', which takes out policy_loss/bee \(bee-dist 1\)"
    ):
        book.get("policy_loss", "bee")
    assert Catalog.load(block=["policy_loss/ant-dist/bee"]).get("policy_loss", "bee").name == "bee"


def test_a_recipe_may_name_an_installed_plugin_by_its_own_name(three, monkeypatch):
    book = Catalog.load()
    for name in ("bee_mod", "bee-dist"):
        grown = book.with_plugin(name, three)
        assert taken(grown) == taken(book)
        assert grown.get("policy_loss", "bee").distribution == "bee-dist 1"
    monkeypatch.setenv("LOSSARY_BLOCK", "bee-dist")
    for name in ("bee_mod", "bee-dist"):
        with pytest.raises(PluginError, match="is blocked: LOSSARY_BLOCK names 'bee-dist'"):
            Catalog.load().with_plugin(name, three)
    with pytest.raises(LossaryError, match=r"'bee_mod' belongs to the plugin 'bee_mod' .bee-dist 1., which is blocked"):
        Catalog.load().resolve("policy_loss", "bee_mod:bee")


def test_a_blocked_plugin_is_not_imported_by_way_of_its_modules(site, monkeypatch):
    install(site, "pack-dist", "1", "pack/__init__", "raise AssertionError('imported')\n", entry="pack_entry")
    (site / "pack_dist-1.dist-info" / "entry_points.txt").write_text("[lossary]\npack_entry = pack.hooks\n")
    (site / "pack_dist-1.dist-info" / "top_level.txt").write_text("pack\n")
    (site / "pack_dist-1.dist-info" / "RECORD").write_text("pack/__init__.py,,\n")
    lossary.registry.modules._distributions.cache_clear()
    monkeypatch.setenv("LOSSARY_BLOCK", "pack-dist")
    for name in ("pack", "pack.hooks", "pack.losses", "pack_entry"):
        with pytest.raises(PluginError, match=r"which is blocked|is blocked: LOSSARY_BLOCK names 'pack-dist'"):
            Catalog.load().with_plugin(name, site)
    lossary.registry.modules._distributions.cache_clear()


def test_a_module_goes_before_an_entry_point_that_only_happens_to_be_called_so(site):
    install(site, "other-dist", "1", "other_mod", GOOD, entry="losses_of_mine")
    write(site, "losses_of_mine.py", pl("mine"))
    book = Catalog.load().with_plugin("losses_of_mine", site)
    assert book.get("policy_loss", "mine").distribution == "plugin losses_of_mine"
    assert book.get("policy_loss", "stranger").distribution == "other-dist 1"


def test_a_blocked_component_does_not_come_back_by_a_recipe(three):
    write(three, "own.py", pl("bee") + pl("free"))
    book = Catalog.load(block=["policy_loss/bee"]).with_plugin("own.py", three)
    assert {"free", "ant"} <= set(book.names("policy_loss"))
    assert "bee" not in book.names("policy_loss")


def test_closed_runs_nobody_elses_code(three, monkeypatch):
    monkeypatch.setenv("LOSSARY_NO_PLUGINS", "1")
    write(three, "own.py", pl("own"))
    book = lossary.catalog()
    assert taken(book) == [p.distribution for p in book.plugins if p.distribution == "lossary"]
    assert {s.state for s in book.skipped} == {"not asked for"}
    said = r"no plugins are .*--no-plugins or LOSSARY_NO_PLUGINS"
    for name in ("own.py", "bee_mod", "own"):
        with pytest.raises(PluginError, match=said):
            book.with_plugin(name, three)
    with pytest.raises(UnknownName, match=said):
        book.resolve("policy_loss", "ant_mod:ant")
    with pytest.raises(RecipeError, match=r"plugins.0: plugin 'own.py' is not loaded: no plugins are"):
        lossary.compose({"plugins": ["own.py"], "policy_loss": "own"})
    assert not {"ant_mod", "bee_mod", "own"} & set(sys.modules)
    assert book.resolve("policy_loss", first_loss).function is first_loss  # a caller's own function is the caller's code
    for off in ("", "0", "no", "FALSE"):
        monkeypatch.setenv("LOSSARY_NO_PLUGINS", off)
        assert not Selection.of_environment().closed


# ── who brought it ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_component_says_who_brought_it(three):
    info = three / "ant_dist-1.dist-info"
    (info / "RECORD").write_text("ant_mod.py,,\n")
    (info / "top_level.txt").write_text("ant_mod\n")
    write(three, "loose.py", pl("loose"))
    lossary.registry.modules._distributions.cache_clear()
    book = Catalog.load(lossary.builtin.BUILTIN).with_plugin("loose", three).with_plugin("loose.py", three)
    assert all(c.distribution for c in book)
    assert book.resolve("policy_loss", "ant_mod:ant").distribution == "ant-dist 1"
    assert book.resolve("policy_loss", "loose:loose").distribution == "module loose"
    assert {c.distribution for c in book if c.name == "loose"} == {"plugin loose", "plugin loose.py"}
    assert Catalog.load(block=["ant-dist"]).resolve("kl", "lossary.estimators.kl.k3:k3").distribution == "lossary"
    lossary.registry.modules._distributions.cache_clear()


def test_an_installed_plugin_that_a_recipe_names_again_hears_each_event_once(site):
    source = "heard = []\n@r.hookimpl\ndef lossary_event(event):\n    heard.append(event)\n"
    install(site, "ear-dist", "1", "ear_mod", GOOD + source, entry="ear")
    book = Catalog.load().with_plugin("ear_mod", site)
    book.announce({"event": "step", "step": 1})
    import ear_mod

    assert ear_mod.heard == [{"event": "step", "step": 1}]
    assert isinstance(ear_mod.heard[0], MappingProxyType)  # one listener does not change what the next one hears


def test_a_listener_that_raises_is_told_no_more_and_stops_nobody(site):
    broken, well = Built([first_loss]), Built([])
    broken.heard = None
    book = Catalog.load([broken, well], discover=False)
    with pytest.warns(PluginWarning, match="lossary_event failed and is called no more: AttributeError"):
        book.announce({"event": "step", "step": 1})
    book.announce({"event": "step", "step": 2})
    assert [e["step"] for e in well.heard] == [1, 2]


def test_a_fingerprint_changes_with_code_name_and_bringer(site):
    def made(source, name="own.py"):
        write(site, name, source)
        grown = Catalog().with_plugin(name, site)
        return grown.fingerprint()

    first = made(pl("mine"))
    assert made(pl("mine")) == first
    others = [made(pl("mine", "return log_prob")), made(pl("other")), made(pl("mine"), "own2.py"), made(pl("mine", alias="also"))]
    assert len({first, *others}) == 5
    alone = [component_of(first_loss)]
    assert fingerprint(alone) == fingerprint(alone) != fingerprint([])
    assert len(first) == 16


def test_columns_of_a_plugin_are_known_to_lists(site):
    install(site, "col-dist", "1", "col_mod", HOOK.format("lossary_fields", "[r.column('flag', level='token', doc='')]"))
    (plugin,) = Catalog.load().plugins
    assert (plugin.columns, plugin.recipes, plugin.components) == (("flag",), (), ())
    assert Catalog.load().fields["flag"] == column("flag", level="token", doc="")
