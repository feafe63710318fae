"""Real steps of the demo, caught at the moment of their loss."""

from dataclasses import dataclass
from typing import Any

import torch

from lossary.pipeline import load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.scoring import policy_scores, values_of
from lossary.trainer.settings import Settings

SMALL = ("rollout.prompts=16", "rollout.samples_per_prompt=8", "evaluate.items=4")


@dataclass(frozen=True)
class Caught:
    """One optimizer step: the weighed batch, what the model said of it, and whose loss it was."""

    objective: Any
    recipe: Any
    batch: Any
    outputs: dict[str, torch.Tensor]
    tokens: list[str]


class Catching(Trainer):
    """A trainer that shows every step to ``see`` before it takes it."""

    def _take_step(self, objective, optimizing, inputs, batch):
        if objective is self.objective and not objective.measures:
            self.see(objective, inputs, objective.weigh(batch))
        return super()._take_step(objective, optimizing, inputs, batch)

    def see(self, objective, inputs, batch):
        with torch.no_grad():
            log_prob, entropy = policy_scores(self.policy, inputs, batch, self.settings.rollout.temperature)
            outputs = {"log_prob": log_prob, "entropy": entropy}
            if self.critic is not None:
                outputs["values"] = values_of(self.critic, inputs, batch, self._trunk_of(inputs, batch))
        tokens = [self.chars.decode([i]) for i in batch["token_ids"].tolist()]
        self.shown(Caught(objective, self.settings.recipe, batch, outputs, tokens))


def steps(recipe, folder, show, *overrides, count=1):
    """Run a recipe's first ``count`` rollouts (some minibatches each) and show every step."""
    settings = Settings.of(load_recipe(recipe, [*SMALL, f"train.steps={count}", *overrides]))
    run = RunFolder.new(folder, settings.recipe.name, settings.recipe.text(), settings.recipe.code())
    trainer = Catching(settings, run)
    trainer.shown = show
    trainer.run()
