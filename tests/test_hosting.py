"""What strangers' code may do to the host: what a hook returns and an import does, and for which API it is written."""

import pytest
from plugin_site import GOOD, brought, install, only_failure, pl, write

import lossary
from lossary import Catalog, UnknownName
from lossary.registry import API

HOOK = "import lossary.registry as r\n@r.hookimpl\ndef {}():\n    return {}\n"


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
