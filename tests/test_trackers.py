"""Trackers: what they are told, and that none of them can end a run."""

import json
import sys
from types import ModuleType, SimpleNamespace

import pytest

from lossary import catalog
from lossary.pipeline import load_recipe
from lossary.registry import RecipeError
from lossary.trackers import Tracking, numbers
from lossary.trainer.loop import Trainer, train
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

SMALL = {
    "policy_loss": "grpo",
    "advantage": "grpo",
    "task": {"use": "sort-letters", "letters": 2},
    "model": {"d_model": 8, "layers": 1, "heads": 1},
    "rollout": {"prompts": 2, "samples_per_prompt": 2},
    "train": {"steps": 3, "checkpoint_every": 1},
    "evaluate": {"every": 2, "items": 4},
}


class Noted(ModuleType):
    """A stand-in for a library: writes down every call."""

    def __init__(self, name, **own):
        super().__init__(name)
        self.calls = []
        vars(self).update(own)

    def note(self, name):
        return lambda *a, **k: self.calls.append((name, a, k))


def a_tensorboard():
    module = Noted("torch.utils.tensorboard")

    def writer(folder, **how):
        module.calls.append(("open", (folder,), how))
        return SimpleNamespace(add_scalar=lambda *a: module.calls.append(("log", a, {})), close=module.note("close"))

    module.SummaryWriter = writer
    return module, lambda: [(a[2], a[0], a[1]) for n, a, _ in module.calls if n == "log"]


def a_trackio():
    module = Noted("trackio")
    module.init, module.log, module.finish = module.note("open"), module.note("log"), module.note("close")
    return module, lambda: [(k["step"], name, x) for n, a, k in module.calls if n == "log" for name, x in a[0].items()]


def a_wandb():
    module = Noted("wandb")

    def init(**how):
        module.calls.append(("open", (), how))
        return SimpleNamespace(log=module.note("log"), finish=module.note("close"), define_metric=lambda *a, **k: None)

    module.init = init
    found = lambda: [  # noqa: E731
        (a[0]["step"], name, x) for n, a, _ in module.calls if n == "log" for name, x in a[0].items() if name != "step"
    ]
    return module, found


STUBS = {"tensorboard": a_tensorboard, "trackio": a_trackio, "wandb": a_wandb}


@pytest.fixture(params=sorted(STUBS))
def stub(request, monkeypatch):
    """The name of a tracker, its library's stand-in and what that was told as (step, name, value)."""
    module, told = STUBS[request.param]()
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return request.param, module, told


def settings(**more):
    return Settings.of(load_recipe({**SMALL, **more}))


def test_every_tracker_of_the_catalog_is_looked_at_here():
    assert {c.name for c in catalog() if c.kind.name == "tracker"} == set(STUBS)


def test_a_tracker_is_told_every_number_of_the_metrics_file(stub, tmp_path):
    name, module, told = stub
    folder, lines = train(settings(trackers=[name]), tmp_path)
    wanted = [(line["step"], key, value) for line in lines for key, value in numbers(line).items()]
    assert sorted(told()) == sorted(wanted)
    assert {s for s, _, _ in told()} == {0, 1, 2, 3}
    assert {"reward", "actor/pg_loss", "eval/accuracy", "time/cpu_seconds"} <= {n for _, n, _ in told()}
    assert module.calls[0][0] == "open"
    assert [n for n, _, _ in module.calls].count("close") == 1
    assert module.calls[-1][0] == "close"
    assert [json.loads(x) for x in folder.metrics.read_text().splitlines()] == lines


def test_a_resumed_run_goes_on_where_its_checkpoint_stands(stub, tmp_path):
    name, module, told = stub
    folder, _ = train(settings(trackers=[name]), tmp_path)
    first = next(k for n, _, k in module.calls if n == "open")
    module.calls.clear()
    recipe = load_recipe(str(folder.recipe), ["train.steps=4"])
    folder.keep_recipe(load_recipe(str(folder.recipe)).text())
    trainer = Trainer(Settings.of(recipe), RunFolder.existing(folder.path))
    trainer.resume()
    trainer.run()
    again = next(k for n, _, k in module.calls if n == "open")
    assert {s for s, _, _ in told()} == {4}
    if name == "tensorboard":
        assert (first["purge_step"], again["purge_step"]) == (None, 4)
    elif name == "wandb":
        assert first["id"] == again["id"]
    else:
        assert (first["resume"], again["resume"]) == ("never", "allow")
        assert first["name"] == again["name"]


@pytest.mark.parametrize("moment", ["open", "log", "close"])
def test_a_tracker_that_fails_is_named_and_left_out(moment):
    class Broken:
        calls = 0

        def fail(self, at):
            self.calls += 1
            if at == moment:
                raise OSError("no route to host")

        def open(self, run, recipe, step):
            self.fail("open")

        def log(self, step, metrics):
            self.fail("log")

        def close(self):
            self.fail("close")

    said, broken = [], Broken()
    tracking = Tracking({"mine": broken}, lambda *x: said.append(x))
    tracking.open(None, {}, 0)
    for step in range(3):
        tracking.log({"step": step, "x": 1.0})
    tracking.close()
    assert [name for name, _ in said] == ["mine"]
    assert "OSError: no route to host" in said[0][1]
    assert broken.calls == {"open": 1, "log": 2, "close": 5}[moment]


def test_a_failing_tracker_ends_no_run_and_is_said_in_it(tmp_path, monkeypatch):
    module, _ = a_trackio()

    def log(*_, **__):
        raise ConnectionError("gone")

    module.log = log
    monkeypatch.setitem(sys.modules, "trackio", module)
    heard = []
    _, lines = train(settings(trackers="trackio"), tmp_path, heard.append)
    assert lines[-1]["step"] == 3
    assert [x["warning"] for x in heard if "warning" in x and "tracker" in x["warning"]] == ["tracker trackio"]


@pytest.mark.parametrize("name", sorted(STUBS))
def test_a_missing_library_is_a_fault_with_its_place_and_the_command(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, STUBS[name]()[0].__name__, None)
    file = tmp_path / "r.yaml"
    file.write_text(f"policy_loss: grpo\nadvantage: grpo\ntask: sort-letters\ntrackers: [{name}]\n")
    with pytest.raises(RecipeError, match=rf"r\.yaml:4:\d+: trackers\.0: .*pip install {name}"):
        Settings.of(load_recipe(str(file)))


@pytest.mark.parametrize(("said", "match"), [
    ("[trackoi]", "trackio"), ("[{use: trackio, projct: x}]", "project"), ("[trackio, trackio]", "named twice"), ("[]", "an empty list"),
    ("[grpo]", "stands under"), ("3", "expected the name of a tracker"),
])  # fmt: skip
def test_what_is_wrong_in_a_recipe_is_said(said, match, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", a_trackio()[0])
    file = tmp_path / "r.yaml"
    file.write_text(f"policy_loss: grpo\nadvantage: grpo\ntask: sort-letters\ntrackers: {said}\n")
    with pytest.raises(RecipeError, match=match):
        Settings.of(load_recipe(str(file)))


def test_text_and_truth_are_no_curves():
    assert numbers({"step": 3, "a": 1, "b": True, "c": "x", "d": float("nan")}).keys() == {"a", "d"}
