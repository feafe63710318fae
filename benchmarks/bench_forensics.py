"""What it costs to look into every step of the demo: gradient forensics on log-probs, beside the step itself."""

import time

import pytest
import torch

from lossary.diagnostics.forensics import forensics
from lossary.pipeline import load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.scoring import policy_scores
from lossary.trainer.settings import Settings

TARGET = 0.03


class Watched(Trainer):
    """A trainer that times the forensics of every optimizer step, and what brings the log-probs to them, apart from the rest."""

    def __init__(self, *given):
        super().__init__(*given)
        self.looking, self.scoring, self.updates = [], [], []

    def _take_step(self, objective, optimizing, inputs, batch):
        if objective is self.objective:
            weighed = objective.weigh(batch)
            began = time.process_time()
            with torch.no_grad():
                log_prob, entropy = policy_scores(self.policy, inputs, weighed, self.settings.rollout.temperature)
            scored = time.process_time()
            forensics(objective, weighed, {"log_prob": log_prob, "entropy": entropy})
            ended = time.process_time()
            self.scoring.append(scored - began)
            self.looking.append(ended - scored)
        return super()._take_step(objective, optimizing, inputs, batch)

    def _update(self):
        before, began = len(self.looking), time.process_time()
        line = super()._update()
        spent = sum(self.looking[before:]) + sum(self.scoring[before:])
        self.updates.append(time.process_time() - began - spent)
        return line


@pytest.mark.parametrize("what", ["log-probs at hand", "log-probs scored anew"])
def bench_forensics(races, benchmark, tmp_path, what):
    if races.device.name != "cpu":
        pytest.skip("the demo trains on the CPU")
    steps = 6 if races.quick else 16
    settings = Settings.of(load_recipe("demo", [f"train.steps={steps}", "evaluate.items=8"]))
    recipe = settings.recipe
    trainer = Watched(settings, RunFolder.new(tmp_path, recipe.name, recipe.text(), recipe.code()))
    benchmark.pedantic(trainer.run, rounds=1, iterations=1)
    minibatches = settings.train.minibatches
    looks = [a + (b if what == "log-probs scored anew" else 0.0) for a, b in zip(trainer.looking, trainer.scoring, strict=True)]
    per_step = sorted(sum(looks[i : i + minibatches]) for i in range(0, len(looks), minibatches))
    middle, step = per_step[len(per_step) // 2], sorted(trainer.updates)[len(trainer.updates) // 2]
    races.rows.append(
        {
            "figure": f"gradient forensics of a demo step, {what}",
            "ours": {"seconds": middle, "note": "", "error": None},
            "peer": {"name": "the step itself (rollout and 4 optimizer steps)", "seconds": step, "note": "", "error": None},
            "bound": None,
            "targets": {"ratio": TARGET} if what == "log-probs at hand" else {},
            "rounds": len(per_step),
        }
    )
