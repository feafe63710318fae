"""What strangers' code may do to the host: nothing that is not said, and nothing to its neighbours."""

import io
import os
import random
import subprocess
import sys
from functools import partial
from types import MappingProxyType

import pytest
import torch
from plugin_site import GOOD, Built, brought, first_loss, install, pl, write

import lossary
from lossary import Catalog, LossaryError, PluginError, RecipeError, UnknownName
from lossary.registry import API, ComponentError, PluginWarning, Selection, column, component_of, fingerprint

HOOK = "import lossary.registry as r\n@r.hookimpl\ndef {}():\n    return {}\n"


def only_failure(site, source, module="bad_one"):
    """The one cause why a plugin is out; the good one beside it is in."""
    install(site, "good-dist", "1.2", "good_one", GOOD)
    install(site, "bad-dist", "0.1", module, source)
    book = Catalog.load()
    assert brought(book, "good-dist 1.2") == {"policy_loss/stranger"}
    assert brought(book, "bad-dist 0.1") == set()
    (failure,) = book.failures
    return failure.why


# ── what a hook may return ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("hook", "returns", "why"),
    [
        ("lossary_components", "None", "lossary_components returns nothing; is its `return` missing?"),
        ("lossary_components", "7", "lossary_components returns 7; expected an iterable of decorated functions."),
        ("lossary_components", "'grpo'", "lossary_components returns 'grpo'; expected an iterable of decorated functions."),
        ("lossary_components", "print", "lossary_components returns the function 'print'; expected an iterable"),
        ("lossary_components", "{'a': print}", "lossary_components returns a dict; expected"),
        ("lossary_components", "[7]", "plugin 'bad_one' offers 7, which carries no lossary decorator."),
        ("lossary_components", "[None]", "plugin 'bad_one' offers None, which carries no lossary decorator."),
        ("lossary_components", "iter(int, 1)", "lossary_components offers more than 10000 things."),
        ("lossary_components", "(1 / 0 for _ in [1])", "ZeroDivisionError: division by zero (line 4 of bad_one.py)"),
        ("lossary_fields", "None", "lossary_fields returns nothing; is its `return` missing?"),
        ("lossary_fields", "['valid']", "lossary_fields offers 'valid'; expected column(...)."),
        ("lossary_fields", "r.column('valid', level='token', doc='')", "lossary_fields returns a Column; expected an iterable of column(...)."),
        ("lossary_fields", "[r.column('valid', level='token', doc=''), r.column('valid', level='sequence', doc='')]", "already declared with another meaning"),
        ("lossary_recipes", "['mine']", "lossary_recipes returns a list; expected {name: YAML text}."),
        ("lossary_recipes", "{'mine': {'policy_loss': 'grpo'}}", "the recipe 'mine' is a dict; expected YAML text."),
        ("lossary_recipes", "{'../../evil': ''}", "a recipe is called '../../evil'; a name has letters"),
        ("lossary_recipes", "{'..': ''}", "a recipe is called '..'; a name has letters"),
        ("lossary_recipes", "{3: ''}", "a recipe is called 3; a name has letters"),
    ],
)  # fmt: skip
def test_what_a_hook_returns_is_checked(site, hook, returns, why):
    assert why in only_failure(site, HOOK.format(hook, returns))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("class Rude(BaseException): ...\nraise Rude('out')", "Rude: out (line 2 of bad_one.py)"),
        ("import sys\nsys.exit('bye')", "SystemExit: bye (line 2 of bad_one.py)"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded (line 1 of bad_one.py)"),
        ("import lossary.registry as r\n@r.policy_loss\ndef f(log_prob, *more): ...", "bad_one.py:2: policy_loss 'f': *more is no contract"),
        ("import lossary.registry as r\n@r.policy_loss(units='nats')\ndef f(log_prob): ...", "unexpected keyword argument 'units'"),
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_event(events): ...", "Known hooks are lossary_components(), lossary_event(event)"),
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_train(): ...", "unknown hook 'lossary_train'"),
        ("lossary_api = 'two'\n" + GOOD, "lossary_api is 'two'; it is a whole number"),
        ("lossary_api = True\n" + GOOD, "lossary_api is True; it is a whole number"),
        ("import lossary\nlossary.catalog()\n" + GOOD, "the catalog is asked for while it is being built"),
        ("import lossary\nlossary.compose('grpo')\n" + GOOD, "the catalog is asked for while it is being built"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::lossary.registry.PluginWarning")
def test_what_a_module_does_when_imported_stays_its_own_affair(site, source, why):
    install(site, "good-dist", "1.2", "good_one", GOOD)
    install(site, "bad-dist", "0.1", "bad_one", source)
    book = lossary.catalog()
    assert brought(book, "good-dist 1.2") == {"policy_loss/stranger"}
    assert len(brought(book, "lossary")) > 100
    (failure,) = book.failures
    assert why in failure.why


def test_a_keyboard_interrupt_is_the_users(site):
    install(site, "bad-dist", "0.1", "bad_one", "raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        Catalog.load()


def test_what_a_plugin_prints_does_not_stand_in_what_machines_read(site, capsys):
    install(site, "loud-dist", "1", "loud", "print('hello from loud')\n" + GOOD)
    write(site, "file.py", "print('hello from file')\n" + pl("mine"))
    Catalog.load().with_plugin("file.py", site)
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "hello from loud\nhello from file\n"


def test_metadata_that_cannot_be_read_is_one_plugins_failure(site):
    install(site, "good-dist", "1.2", "good_one", GOOD)
    for name, text in (("torn-dist", "[lossary]\nno equals sign\n"), ("other-dist", "[console_scripts]\nno equals sign\n")):
        install(site, name, "1", f"{name[:4]}_mod", GOOD)
        (site / f"{name.replace('-', '_')}-1.dist-info" / "entry_points.txt").write_text(text)
    install(site, "garbage-dist", "1", "garbage_mod", GOOD)
    (site / "garbage_dist-1.dist-info" / "entry_points.txt").write_bytes(b"[lossary]\n\xff\xfe\n")
    install(site, "wrong-dist", "1", "wrong_mod", GOOD)
    (site / "wrong_dist-1.dist-info" / "entry_points.txt").write_text("[lossary]\nwrong = not a module!\n")
    install(site, "bare-dist", "1", "bare_mod", GOOD.replace("stranger", "bare").replace("other_name", "bare2"))
    (site / "bare_dist-1.dist-info" / "METADATA").unlink()
    book = Catalog.load()
    assert {"stranger", "bare"} <= set(book.names("policy_loss"))
    assert sorted(str(f) for f in book.failures) == [
        "plugin 'torn-dist' (torn-dist 1) did not load: its entry_points.txt cannot be read: each line says name = module.",
        "plugin 'wrong' (wrong-dist 1) did not load: its entry point 'not a module!' is no module, as in my_package.losses.",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("requires", "enters"),
    [
        ("lossary>=0.0.1", True),
        ("lossary[hf] (>=0.0.1)", True),
        ('lossary>=99; extra == "newest"', True),
        ("lossary-extras>=99", True),
        ("lossary>=99", False),
        ("lossary>>>1", False),
        ("torch>>>1", True),
    ],
)
def test_what_a_distribution_requires_is_kept_to(site, requires, enters):
    install(site, "needy-dist", "1", "needy", GOOD, requires=requires)
    book = Catalog.load()
    assert [p.distribution for p in book.plugins] == (["needy-dist 1"] if enters else [])
    assert len(book.failures) == (not enters)


# ── the API ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_plugin_of_a_newer_api_is_out_with_its_cause(site):
    why = only_failure(site, f"lossary_api = {API + 1}\n" + GOOD)
    assert why == f"is written for API {API + 1} of lossary, and lossary {lossary.__version__} has API {API}: upgrade lossary."


@pytest.mark.parametrize(
    "source",
    ["import lossary.registry as r\nr.policy_loss(units='nats')\n", "from lossary import something_new\n", "import lossary.new_folder\n"],
)
def test_an_import_that_fails_for_a_newer_api_says_so(site, source):
    assert only_failure(site, f"lossary_api = {API + 1}\n{source}").startswith(
        f"it is written for API {API + 1}, and lossary has API {API}: "
    )


def test_a_component_of_a_newer_api_stays_out_alone(site):
    write(site, "mixed_newer.py", f"lossary_api = {API + 1}\n" + pl("tomorrow", alias="next_week"))
    install(site, "mixed-dist", "1", "mixed", "from mixed_newer import tomorrow\n" + GOOD.replace("[stranger]", "[stranger, tomorrow]"))
    book = Catalog.load()
    assert (book.failures, brought(book, "mixed-dist 1")) == ([], {"policy_loss/stranger"})
    said = f"policy_loss/tomorrow (mixed-dist 1) is written for API {API + 1} of lossary, which has API {API}: it is left out"
    assert book.notes == [said]
    for name in ("tomorrow", "next-week", "mixed-dist/tomorrow"):
        with pytest.raises(UnknownName, match="upgrade lossary") as caught:
            book.get("policy_loss", name)
        assert said in str(caught.value)


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


# ── what a stranger's code may do to the process ─────────────────────────────────────────────────────────────────────

TEXTLESS = "class X(Exception):\n    def __str__(self): raise ValueError('no')\n"
ENDING = "class X(BaseException): pass\n"
LISTENER = "import lossary.registry as r\n{}@r.hookimpl\ndef lossary_event(event):\n    {}\n"


def in_a_file(site, source):
    write(site, "own.py", source)
    with pytest.raises(PluginError) as caught:
        Catalog().with_plugin("own.py", site)
    return str(caught.value)


def test_an_error_without_a_text_is_told_by_its_type(site):
    said = "X: (no text, for its __str__ raises ValueError) (line 3 of {}.py)"
    assert only_failure(site, f"{TEXTLESS}raise X") == said.format("bad_one")
    assert said.format("own") in in_a_file(site, f"{TEXTLESS}raise X")
    assert in_a_file(site, f"import lossary\n{TEXTLESS.replace('Exception', 'lossary.LossaryError')}raise X").endswith("raises ValueError)")
    write(site, "held.py", f"{TEXTLESS}raise X")
    with pytest.raises(UnknownName, match="no text, for its __str__ raises ValueError"):
        Catalog().resolve("policy_loss", "held:x")
    write(site, "ear.py", LISTENER.format(TEXTLESS, "raise X"))
    with pytest.warns(PluginWarning, match="called no more: X: .no text, for its __str__ raises ValueError"):
        Catalog().with_plugin("ear.py", site).announce({"event": "step"})


def test_a_loss_whose_error_has_no_text_is_named(site):
    write(site, "own.py", TEXTLESS + pl("mine", "raise X"))
    write(site, "own.yaml", "plugins: [own.py]\npolicy_loss: mine\n")
    objective = lossary.compose(site / "own.yaml")
    batch = lossary.Batch.from_packed([2], old_log_prob=torch.zeros(2), advantages=torch.ones(2))
    weighed = objective.weigh(objective.estimate(batch))
    with pytest.raises(ComponentError, match=r"mine.*X: \(no text, for its __str__ raises ValueError\)"):
        objective.loss(weighed, log_prob=torch.zeros(2, requires_grad=True))


@pytest.mark.parametrize("raises", ["raise X('boo')", "import pytest; pytest.importorskip('nowhere_at_all')"])
def test_what_is_no_exception_stays_in_the_plugin_too(site, raises):
    cause = "boo" if "boo" in raises else "Skipped: could not import 'nowhere_at_all'"
    told = in_a_file(site, f"{ENDING}{raises}")
    assert told.startswith("plugin 'own.py' does not load: ")
    assert cause in told
    told = in_a_file(site, f"{ENDING}{LISTENER.format('', raises)}".replace("event(event)", "components()"))
    assert told.startswith("plugin 'own.py' cannot be taken in: ")
    assert cause in told
    write(site, "held.py", f"{ENDING}{raises}")
    with pytest.raises(UnknownName, match=r"'held:x' cannot be imported: .*(boo|nowhere)"):
        Catalog().resolve("policy_loss", "held:x")
    write(site, "ear.py", LISTENER.format(ENDING, raises))
    with pytest.warns(PluginWarning, match="lossary_event failed and is called no more: .*(boo|nowhere)"):
        Catalog().with_plugin("ear.py", site).announce({"event": "step"})


@pytest.mark.parametrize(
    "source", ["raise KeyboardInterrupt", LISTENER.format("", "raise KeyboardInterrupt").replace("event(event)", "fields()")]
)
def test_a_keyboard_interrupt_in_a_recipes_plugin_is_the_users_too(site, source):
    write(site, "own.py", source)
    with pytest.raises(KeyboardInterrupt):
        Catalog().with_plugin("own.py", site)
    write(site, "ear.py", LISTENER.format("", "raise KeyboardInterrupt"))
    with pytest.raises(KeyboardInterrupt):
        Catalog().with_plugin("ear.py", site).announce({})


CHANGES = {
    "torch.set_default_dtype(torch.float64)": "torch's default dtype from torch.float32 to torch.float64",
    "torch.set_default_device('meta')": "torch's default device from cpu to meta",
    "torch.set_grad_enabled(False)": "torch's grad mode from True to False",
    "torch.manual_seed(987654)": "the random seed from [0-9]+ to 987654",
    "os.chdir('/')": "the working directory from .* to /",
}


def state():
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        os.getcwd(),
        torch.get_rng_state().tolist(),
        random.getstate(),
    )


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("where", ["installed", "hook", "file", "path", "event"])
def test_what_a_plugin_changes_for_everybody_is_put_back_and_told(site, change, where):
    before, changing = state(), f"import os, torch, random\n{change}\ntorch.rand(3); random.random()\n"
    hooked = LISTENER.format("import os, torch\n", f"{change}; torch.rand(3)")
    who = "plugin 'bad_one' .bad-dist 0.1."
    match where:
        case "installed" | "hook":
            hook = hooked.replace("event(event)", "components()") + "    return []\n"
            install(site, "bad-dist", "0.1", "bad_one", changing + GOOD if where == "installed" else hook)
            act = Catalog.load
        case "file":
            who = "plugin 'own.py'"
            write(site, "own.py", changing + GOOD)
            act = partial(Catalog().with_plugin, "own.py", site)
        case "path":
            who = "the module 'held'"
            write(site, "held.py", changing + pl("mine"))
            act = partial(Catalog().resolve, "policy_loss", "held:mine")
        case "event":
            who = "plugin 'ear.py': lossary_event"
            write(site, "ear.py", hooked)
            act = partial(Catalog().with_plugin("ear.py", site).announce, {"event": "step"})
    with pytest.warns(PluginWarning, match=f"{who} changed {CHANGES[change]}, for everybody in this process: it was put back"):
        act()
    assert state() == before


def test_who_merely_draws_random_numbers_is_not_told_on_and_changes_no_run(site):
    write(site, "own.py", "import random, torch\ntorch.rand(9)\nrandom.random()\n" + pl("mine"))
    before = state()
    Catalog().with_plugin("own.py", site)
    assert state() == before


RAW = "import os, sys; print('print'); os.write(1, b'write'); sys.__stdout__.write('kept'); os.system('echo child')"


@pytest.mark.parametrize("where", ["installed", "file", "event"])
def test_what_does_not_ask_python_where_stdout_goes_does_not_stand_there_either(site, capfd, where):
    print("before")
    if where == "installed":
        install(site, "loud-dist", "1", "loud", RAW + GOOD)
        Catalog.load()
    else:
        write(site, "own.py", RAW + GOOD if where == "file" else LISTENER.format("", RAW))
        Catalog().with_plugin("own.py", site).announce({"event": "step"})
    print("after")
    told = capfd.readouterr()
    assert told.out == "before\nafter\n"
    assert all(word in told.err for word in ("print", "write", "kept", "child"))


@pytest.mark.parametrize("descriptor", [1, 2])
def test_a_process_without_an_output_takes_plugins_as_well(site, monkeypatch, descriptor):
    write(site, "own.py", "print('print')\n" + pl("mine"))
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, ("stdout", "stderr")[descriptor - 1], closed if descriptor == 1 else None)
    kept = os.dup(descriptor)
    os.close(descriptor)
    try:
        book = Catalog().with_plugin("own.py", site)
    finally:
        os.dup2(kept, descriptor)
        os.close(kept)
    assert book.names("policy_loss") == ["mine"]


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
