"""What strangers' code may do to the process that it runs in: nothing that is not said, and nothing to its neighbours."""

import io
import os
import random
import sys
from functools import partial

import pytest
import torch
from plugin_site import GOOD, install, only_failure, pl, write

import lossary
from lossary import Catalog, PluginError, UnknownName
from lossary.registry import ComponentError, PluginWarning

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
