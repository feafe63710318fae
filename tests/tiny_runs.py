"""Runs so small that a test takes many of them, and one rollout of such a run with all that an update needs."""

from lossary import load_recipe
from lossary.trainer.loop import Trainer
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.settings import Settings

TINY = {
    "task": {"use": "sort-letters", "letters": 2},
    "model": {"d_model": 16, "layers": 1, "heads": 2},
    "warm_up": {"steps": 2, "batch": 4},
    "rollout": {"prompts": 3, "samples_per_prompt": 2},
    "train": {"steps": 2, "minibatches": 2},
    "evaluate": {"items": 8},
}
GRPO = {"advantage": "grpo", "policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": 0.01}, "entropy": 0.01} | TINY
PPO = {
    "advantage": ["gae", "whiten"], "policy_loss": "ppo-clip", "value_loss": {"use": "clipped-mse", "coef": 0.5},
    "kl": {"use": "k1", "apply": "reward", "coef": {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.1, "horizon": 100}},
} | TINY  # fmt: skip


def made(recipe, tmp_path, *overrides, listen=lambda line: None):
    settings = Settings.of(load_recipe(recipe, overrides))
    return Trainer(settings, RunFolder.new(tmp_path, "run", "{}\n"), listen)


def rolled(trainer):
    """A rollout with everything that an update needs, as the loop makes it."""
    trainer.reference = trainer._compared_with()
    inputs, batch, _ = trainer._rollout()
    return inputs, trainer.objective.estimate(trainer._remember(inputs, batch))
