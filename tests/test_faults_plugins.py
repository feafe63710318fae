"""Known faults of plugin hosts: registries that lose a name, and plugins that take the host down."""

import multiprocessing
import sys
from collections import Counter

import pytest
import torch
from plugin_site import GOOD, first_loss, install, pl, write

import lossary
from lossary import Batch, Catalog, LossaryError, PluginError, RecipeError, SignatureError, UnknownName
from lossary.pipeline import load_recipe
from lossary.pipeline.lock import lock_of
from lossary.registry import API, PluginWarning, Selection, api, component_of, fingerprint, policy_loss
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

MINE = pl("half_pg", "return -0.5 * log_prob * advantages")
TRAINED = """plugins: [my_losses.py]
advantage: rloo
policy_loss: half_pg
task: {use: sort-letters, letters: 2}
model: {d_model: 8, layers: 1, heads: 2}
rollout: {prompts: 2, samples_per_prompt: 2}
train: {steps: 4, checkpoint_every: 1}
evaluate: {items: 4}
"""


def recipe(site, text, name="r.yaml"):
    (site / name).write_text(text)
    return site / name


def faults(file):
    with pytest.raises(RecipeError) as caught:
        lossary.compose(file)
    return str(caught.value)


def who(file):
    component = lossary.compose(file).plan.terms[0].bound.component
    return component.name, component.distribution, fingerprint([component])


def batch():
    return Batch.from_packed([2], old_log_prob=torch.zeros(2), advantages=torch.ones(2))


# ── REGISTRY ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_registry_o1_a_worker_builds_what_the_recipe_names_and_nothing_else(site):
    """The parent has the module imported, so that without `plugins:` it could work here and fail in a worker after the model is loaded."""
    write(site, "my_losses.py", MINE)
    __import__("my_losses")
    named = recipe(site, "plugins: [my_losses]\npolicy_loss: half_pg\n")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_who, [str(named)]) == [who(named)]
    said = faults(recipe(site, "policy_loss: half_pg\n", "without.yaml"))
    assert "The module 'my_losses' defines it: name it under plugins" in said


def _who(file):
    return who(file)


def test_registry_o2_nothing_is_looked_up_in_a_step(site, monkeypatch):
    write(site, "my_losses.py", MINE)
    counted = Counter()
    for name in ("get", "resolve", "with_plugin"):
        plain = getattr(Catalog, name)
        monkeypatch.setattr(Catalog, name, lambda *a, name=name, plain=plain: (counted.update([name]), plain(*a))[1])
    objective = lossary.compose(recipe(site, "plugins: [my_losses.py]\npolicy_loss: half_pg\n"))
    assert counted["resolve"] > 0
    counted.clear()
    weighed = objective.weigh(objective.estimate(batch()))
    for _ in range(100):
        objective.loss(weighed, log_prob=torch.zeros(2, requires_grad=True)).total.backward()
        objective.commit()
    assert not counted


def test_registry_o3_a_name_of_another_kind_says_of_which(site):
    said = faults(recipe(site, "policy_loss: k3\n"))
    assert "'k3' is a kl, not a policy_loss: it stands under 'kl'." in said


def test_registry_o4_an_import_path_needs_no_decorator(site):
    write(site, "o4_pkg/__init__.py", "")
    write(site, "o4_pkg/losses.py", "def tilted(log_prob, advantages, *, tau: float = 1.0):\n    return -tau * advantages * log_prob\n")
    objective = lossary.compose(recipe(site, "policy_loss: {use: 'o4_pkg.losses:tilted', tau: 0.5}\n"))
    bound = objective.plan.terms[0].bound
    assert f"{bound.component.function.__module__}.{bound.component.function.__name__}" == "o4_pkg.losses.tilted"
    log_prob = torch.tensor([1.0, 3.0], requires_grad=True)
    assert objective.loss(objective.weigh(objective.estimate(batch())), log_prob=log_prob).total.item() == -0.5 * 2.0


def test_registry_o5_a_second_definition_replaces_nothing_in_silence(site):
    def g(log_prob):
        return log_prob

    other = policy_loss(name="first-loss")(g)
    once = Catalog().extended([first_loss])
    assert [c.function for c in once.extended([first_loss])] == [first_loss]
    with pytest.raises(SignatureError) as caught:
        once.extended([other])
    assert component_of(first_loss).place in str(caught.value)
    assert component_of(other).place in str(caught.value)
    # Replacing is said by name, and told.
    install(site, "stranger-dist", "1", "o5_mod", GOOD.replace("stranger", "grpo").replace("other_name", "grpo2"))
    both = lossary.catalog()
    with pytest.raises(UnknownName, match=r"comes from lossary and stranger-dist 1. Say which: lossary/grpo and stranger-dist/grpo"):
        both.get("policy_loss", "grpo")
    chosen = Catalog.load(lossary.builtin.BUILTIN, block=["policy_loss/lossary/grpo"])
    assert chosen.get("policy_loss", "grpo").distribution == "stranger-dist 1"
    assert chosen.notes == ["blocked: policy_loss/grpo (lossary), by 'policy_loss/lossary/grpo'"]


def test_registry_o6_a_plugin_that_lacks_a_module_says_which(site):
    write(site, "my_losses.py", "import fancy_dep\n" + MINE)
    said = faults(recipe(site, "plugins: [my_losses]\npolicy_loss: half_pg\n"))
    assert "plugin 'my_losses' does not load: ModuleNotFoundError: No module named 'fancy_dep' (line 1 of my_losses.py)" in said
    assert "No policy_loss" not in said  # the cause, not what follows from it


def test_registry_o7_catalogs_begin_and_end_as_often_as_one_likes():
    for _ in range(2):
        book = Catalog.load(discover=False).extended([first_loss])
        assert book.get("policy_loss", "first-loss").function is first_loss
        del book
        assert Catalog.load(discover=False).names("policy_loss") == []


def test_registry_o8_a_run_that_was_killed_goes_on_with_the_same_code(site):
    source = write(site, "my_losses.py", MINE)
    settings = Settings.of(load_recipe(recipe(site, TRAINED)))
    folder = RunFolder.new(site, "run", settings.recipe.text(), settings.recipe.code())

    class Killed(Exception):
        pass

    def kill(line):
        if line.get("step") == 3:
            raise Killed

    with pytest.raises(Killed):
        Trainer(settings, folder, kill).run()
    source.write_text(pl("half_pg", "return -0.7 * log_prob * advantages"))  # the run has a copy of its own
    resumed = Settings.of(load_recipe(folder.recipe))
    assert lock_of(resumed.plan) == lock_of(settings.plan)
    (mine,) = [c for c in lock_of(resumed.plan)["components"] if c["kind"] == "policy_loss"]
    assert (mine["use"], mine["from"]) == ("half-pg", "plugin my_losses.py")
    trainer = Trainer(resumed, folder)
    trainer.resume()
    assert trainer.step == 2  # the last whole checkpoint
    kept = folder.path / "my_losses.py"
    kept.write_text(source.read_text())
    with pytest.raises(LossaryError, match=r"policy_loss/half-pg of plugin my_losses.py, which now is other code: put it back"):
        Trainer(Settings.of(load_recipe(folder.recipe)), folder).resume()
    kept.unlink()
    assert "there is no file" in faults(folder.recipe)


# ── PLUGIN ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def two(site, broken="import nowhere_to_be_found\n"):
    install(site, "good-dist", "1.2", "good_plugin", GOOD, entry="good")
    install(site, "broken-dist", "0.3", "broken_plugin", broken, entry="broken")


def test_plugin_o1_a_broken_plugin_beside_a_good_one(site):
    two(site)
    file = recipe(site, "plugins: [good]\npolicy_loss: stranger\n")
    with pytest.warns(PluginWarning, match="plugin 'broken' .broken-dist 0.3. did not load: ModuleNotFoundError"):
        objective = lossary.compose(file)
    assert objective.plan.terms[0].bound.component.distribution == "good-dist 1.2"
    (failure,) = lossary.catalog().failures
    assert (failure.plugin, failure.distribution) == ("broken", "broken-dist 0.3")
    assert failure.why == "ModuleNotFoundError: No module named 'nowhere_to_be_found' (line 1 of broken_plugin.py)"


def test_plugin_o2_a_plugin_for_another_version_says_which(site, monkeypatch):
    monkeypatch.setattr(api, "__version__", "2.1")
    install(site, "shiny", "0.9", "shiny", GOOD, requires="Lossary[hf] >=3")
    (failure,) = Catalog.load().failures
    assert str(failure) == "plugin 'shiny' (shiny 0.9) did not load: requires lossary>=3, and this is lossary 2.1."
    assert "shiny" not in sys.modules


def test_plugin_o3_a_typo_is_a_warning_with_a_traceback_or_strictly_an_error(site, monkeypatch):
    install(site, "typo-dist", "1", "typo_plugin", "x = 1\nundefined_name\n")
    with pytest.warns(
        PluginWarning, match=r"NameError: name 'undefined_name' is not defined \(line 2 of typo_plugin.py\). `lossary plugins -v`"
    ):
        (failure,) = lossary.catalog().failures
    assert failure.traceback.startswith("Traceback (most recent call last):\n  File ")
    assert failure.traceback.count("File ") == 1  # the plugin's own line, none of the host's
    monkeypatch.setenv("LOSSARY_STRICT", "1")
    with pytest.raises(PluginError, match="typo_plugin") as caught:
        lossary.catalog()
    assert isinstance(caught.value.__cause__, NameError)


def test_plugin_o4_a_name_of_two_distributions_is_said_with_its_vendor(site):
    for dist in ("dist_a", "dist_b"):
        install(site, dist, "1", f"{dist}_mod", GOOD.replace("stranger", "tilted"))
    said = faults(recipe(site, "policy_loss: tilted\n"))
    assert "The policy_loss 'tilted' comes from dist_a 1 and dist_b 1. Say which: dist-a/tilted and dist-b/tilted." in said
    assert who(recipe(site, "policy_loss: dist_b/tilted\n"))[1] == "dist_b 1"


@pytest.mark.filterwarnings("ignore::lossary.registry.PluginWarning")
def test_plugin_o5_a_plugin_that_a_recipe_names_must_load(site):
    two(site)
    said = faults(recipe(site, "plugins: [broken]\npolicy_loss: ppo-clip\n"))
    assert "r.yaml:1:11: plugins.0: plugin 'broken' (broken-dist 0.3) did not load: ModuleNotFoundError" in said


def test_plugin_o6_an_older_api_is_taken_with_a_note(site, monkeypatch):
    from lossary.registry import catalog as module

    for place in (api, module):
        monkeypatch.setattr(place, "API", API + 1)
    install(site, "old-dist", "1", "old_plugin", f"lossary_api = {API}\n" + GOOD)
    book = Catalog.load()
    assert book.get("policy_loss", "stranger").distribution == "old-dist 1"
    assert book.notes == [
        f"plugin 'old_plugin' (old-dist 1) is written for API {API} of lossary; {API + 1} is the newest, and the old one is deprecated."
    ]
    monkeypatch.setattr(api, "OLDEST", API + 1)
    (failure,) = Catalog.load().failures
    assert (
        failure.why == f"is written for API {API} of lossary, and lossary {lossary.__version__} takes {API + 1} to {API + 1}: upgrade it."
    )


@pytest.mark.parametrize("strict", ["", "0", "1"])
def test_plugin_o7_the_same_broken_plugin_under_two_settings(site, monkeypatch, strict):
    two(site, "raise OSError('no licence')")
    monkeypatch.setenv("LOSSARY_STRICT", strict)
    if strict == "1":
        with pytest.raises(PluginError, match="OSError: no licence") as caught:
            lossary.compose({"policy_loss": "stranger"})
        assert type(caught.value.__cause__) is OSError
    else:
        with pytest.warns(PluginWarning, match="OSError: no licence"):
            assert lossary.compose({"policy_loss": "stranger"}).plan.terms[0].name == "policy"
    assert Selection.of_environment().strict is (strict == "1")
