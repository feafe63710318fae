"""What it costs to look at every rollout of the demo: input checks and the rules over its lines, beside the step itself."""

import time

import pytest

from lossary.pipeline import load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings
from lossary.trainer.watching import Watch

TARGET = 0.05


class Timed(Watch):
    """A watch that times itself."""

    def __init__(self, *given):
        super().__init__(*given)
        self.took = []

    def look(self, raw, batch, step):
        began = time.process_time()
        told = super().look(raw, batch, step)
        self.took.append(time.process_time() - began)
        return told

    def judge(self, lines):
        began = time.process_time()
        super().judge(lines)
        if self.took:
            self.took[-1] += time.process_time() - began


@pytest.mark.parametrize("cost", ["cheap", "full"])
def bench_inspect(races, benchmark, tmp_path, cost):
    if races.device.name != "cpu":
        pytest.skip("the demo trains on the CPU")
    steps, every = 6 if races.quick else 16, 10**6 if cost == "cheap" else 1
    settings = Settings.of(load_recipe("demo", [f"train.steps={steps}", "evaluate.items=8", f"diagnose.every={every}"]))
    trainer = Trainer(settings, RunFolder.new(tmp_path, "demo", settings.recipe.text()))
    trainer.watch = Timed(settings.plan, every, tmp_path, trainer.listen)
    updates, update = [], trainer._update

    def timed():
        began = time.process_time()
        line = update()
        updates.append(time.process_time() - began - trainer.watch.took[-1])
        return line

    trainer._update = timed
    benchmark.pedantic(trainer.run, rounds=1, iterations=1)
    looks = sorted(trainer.watch.took[1:])  # every step of the run but the first, in which all checks run
    middle, step = looks[len(looks) // 2], sorted(updates)[len(updates) // 2]
    races.rows.append(
        {
            "figure": f"input checks of a demo step, {'those of every step' if cost == 'cheap' else 'all'}",
            "ours": {"seconds": middle, "note": "", "error": None},
            "peer": {"name": "the step itself (rollout and 4 optimizer steps)", "seconds": step, "note": "", "error": None},
            "bound": None,
            "targets": {"ratio": TARGET} if cost == "cheap" else {},
            "rounds": len(looks),
        }
    )
