"""What a recipe may ask of the trainer: its sections are checked together with the objective's, before anything runs."""

import pytest
from tiny_runs import GRPO, TINY

from lossary import RecipeError, load_recipe
from lossary.trainer.settings import Settings


@pytest.mark.parametrize(
    ("change", "say"),
    [
        ({"task": None}, "task: expected the name of a task"), ({"task": {"use": "spell-backward", "min_letters": 6, "max_letters": 4}}, "min_letters=6 is above max_letters=4"),
        ({"model": [1]}, "model: expected a mapping with chat, d_model, dtype, gguf, heads, layers, lora_alpha, lora_rank, path, template, tied, train_embeddings and wheel"), ({"model": {"heads": 3}}, "model.heads: d_model 64 is not a multiple of heads 3"),
        ({"rollout": {"temperature": 0}}, "rollout.temperature: 0 is out of bounds; expected a number > 0"),
        ({"rollout": {"samples_per_prompt": 1}}, "samples_per_prompt must be >= 2: 'grpo' compares the samples of one prompt"),
        ({"rollout": {"backend": "vllm"}}, "rollout.backend: 'vllm' is not one of 'torch'"), ({"train": {"betas": [0.9, 1.5]}}, "train.betas.1: 1.5 is out of bounds"),
        ({"train": {"lr": 0}}, "train.lr: 0 is out of bounds"), ({"train": {"stesp": 3}}, "train.stesp: unknown key. Did you mean 'steps'?"),
        ({"evaluate": {"items": 0}}, "evaluate.items: 0 is out of bounds"), ({"advantage": "whiten"}, "advantage 'whiten' needs the column 'advantages'"),
    ],
)  # fmt: skip
def test_settings_are_checked_with_the_objectives(change, say):
    with pytest.raises(RecipeError) as caught:
        Settings.of(load_recipe(GRPO | change))
    assert [say in str(f) for f in caught.value.faults] == [True]


def test_faults_of_the_objective_and_of_the_training_come_together():
    with pytest.raises(RecipeError) as caught:
        Settings.of(load_recipe(GRPO | {"policy_loss": "ppo-clp", "train": {"steps": 0}, "task": "sort-leters"}))
    assert [f.path for f in caught.value.faults] == ["policy_loss.use", "task.use", "train.steps"]


def test_a_recipe_without_a_task_cannot_be_trained():
    with pytest.raises(RecipeError, match="task: required to train: which task, as in"):
        Settings.of(load_recipe({"policy_loss": "reinforce", "advantage": "rloo"}))


@pytest.mark.parametrize(
    ("recipe", "say"),
    [
        ({"policy_loss": "reinforce"}, "policy_loss: policy_loss 'reinforce' needs the column 'advantages', which the bundled trainer does not make"),
        ({"advantage": "rloo", "policy_loss": "reinforce", "value_loss": "clipped-mse"}, "value_loss 'clipped-mse' needs the column 'returns'"),
        ({"auxiliary": {"use": "sft", "coef": 1}, "kl": {"use": "k3", "coef": 1}}, "kl 'k3' needs the column 'ref_log_prob', which the bundled trainer does not make without a policy_loss"),
        ({"auxiliary": {"use": "sft", "coef": 1}, "advantage": "rloo"}, "advantage: without a policy_loss the trainer learns from demonstrations"),
    ],
)  # fmt: skip
def test_what_the_trainer_cannot_bring_is_a_fault_of_the_recipe(recipe, say):
    with pytest.raises(RecipeError) as caught:
        Settings.of(load_recipe(recipe | TINY))
    assert say in str(caught.value)
