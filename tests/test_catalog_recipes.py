"""What a recipe's plugins bring, and what a slot may name besides."""

import re
import sys

import pytest
import torch
from plugin_site import brought, first_loss, k9, pl, write

from lossary.registry import (
    Catalog,
    Level,
    Plugin,
    PluginError,
    SignatureError,
    UnknownName,
    advantage_estimator,
    column,
)


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
        ("import lossary.registry as r\n@r.hookimpl\ndef lossary_event(events):\n    return []\n", "Known hooks are lossary_components(), lossary_event(event), lossary_fields() and lossary_recipes()."),
        ("x = 1\n", "offers nothing; expected a decorated function, a column(...) or a hook."),
        (pl("f") + "r.column('rewards', level='token', doc='')\n", "column 'rewards' is already in the vocabulary"),
    ],
)  # fmt: skip
def test_a_named_plugin_that_does_not_load_raises_with_its_cause(book, site, name, source, said):
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


def test_contract_O3_an_import_path_and_a_callable_are_the_same_component(book, site):
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
    with pytest.raises(UnknownName, match=f"plugin_site.py:{k9.__code__.co_firstlineno}: 'k9' is a kl, no policy_loss"):
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
