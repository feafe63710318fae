"""The bundled trainer: the same run from the same seed, what it samples and scores, and what it hands to an objective."""

import json
import math
import warnings

import pytest
import torch
from checkpoints import tensors_of
from tiny_runs import GRPO, PPO, TINY, made, rolled

from lossary import Batch, LossaryError, load_recipe
from lossary.pipeline import bundled_recipes
from lossary.trainer.data import from_rollouts
from lossary.trainer.loop import train
from lossary.trainer.rollout import SamplingParams
from lossary.trainer.scoring import all_at_once, policy_scores
from lossary.trainer.settings import Settings

SHAPING = """
import torch

from lossary import PerSequence, reward_term, sequence_filter


@reward_term
def halved(rewards: PerSequence) -> PerSequence:
    return rewards / 2


@sequence_filter(scope="group")
def first_half(rewards: PerSequence) -> PerSequence:
    return torch.arange(len(rewards), device=rewards.device) < len(rewards) // 2
"""
SMALL = ["model.d_model=16", "model.layers=1", "model.heads=2", "warm_up.steps=2", "warm_up.batch=4", "train.steps=2", "evaluate.items=8"]
SMALLER = [*SMALL, "rollout.prompts=4", "rollout.samples_per_prompt=2"]


def timeless(line):
    return {k: v for k, v in line.items() if not k.startswith("time/")}


# ── whole runs ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", sorted(bundled_recipes()))
def test_every_bundled_recipe_trains_and_says_what_it_did(name, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folder, lines = train(Settings.of(load_recipe(name, SMALLER)), tmp_path)
    assert folder.path.name == f"{name}-0001"
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines == [json.loads(text) for text in folder.metrics.read_text().splitlines()]
    assert all(isinstance(v, (int, float)) and v == v for line in lines for v in line.values())
    assert {"actor/loss", "actor/grad_norm", "eval/accuracy", "time/cpu_seconds", "time/wall_seconds"} <= set(lines[2])
    assert load_recipe(folder.recipe).values["train"]["steps"] == 2
    assert folder.checkpoint.is_dir()


@pytest.mark.parametrize("recipe", [GRPO, PPO], ids=["grpo", "ppo"])
def test_two_runs_of_one_seed_write_the_same_file(recipe, tmp_path):
    settings = Settings.of(load_recipe(recipe))
    first, second = (train(settings, tmp_path) for _ in range(2))
    assert (first[0].path.name, second[0].path.name) == ("recipe-0001", "recipe-0002")
    assert [timeless(x) for x in first[1]] == [timeless(x) for x in second[1]]
    one, two = (tensors_of(f.checkpoint) for f, _ in (first, second))
    assert one.keys() == two.keys()
    assert any(name.startswith("critic.") for name in one) == (recipe is PPO)
    assert all(torch.equal(x, two[name]) for name, x in one.items())


def test_another_seed_is_another_run(tmp_path):
    runs = [train(Settings.of(load_recipe(GRPO, [f"train.seed={seed}"])), tmp_path)[1] for seed in (0, 1)]
    assert timeless(runs[0][1]) != timeless(runs[1][1])


def test_a_run_does_not_follow_the_global_generator(tmp_path):
    runs = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        runs.append([timeless(x) for x in train(Settings.of(load_recipe(GRPO)), tmp_path)[1]])
    assert runs[0] == runs[1]


def test_a_listener_hears_of_every_line_and_of_the_warm_up(tmp_path):
    heard = []
    made(GRPO, tmp_path, listen=heard.append).run()
    assert heard[0]["warm_up"] == heard[0]["of"] == 2
    assert [line["step"] for line in heard[1:] if "warning" not in line] == [0, 1, 2]


def test_demonstrations_are_learned_without_any_rollout(tmp_path):
    recipe = {"auxiliary": {"use": "sft", "coef": 1.0}} | TINY | {"train": {"steps": 30, "lr": 1e-2}, "warm_up": {"steps": 0, "batch": 32}}
    lines = made(recipe, tmp_path).run()
    assert "reward" not in lines[-1]
    assert lines[-1]["actor/sft_loss"] < 0.6 * lines[1]["actor/sft_loss"]
    assert lines[-1]["actor/loss"] == lines[-1]["actor/sft_loss"]


def test_evaluation_comes_first_last_and_now_and_then(tmp_path):
    lines = made(GRPO, tmp_path, "train.steps=5", "evaluate.every=2").run()
    assert ["eval/accuracy" in line for line in lines] == [True, False, True, False, True, True]


def test_the_first_minibatch_of_a_rollout_is_on_policy(tmp_path):
    lines = made(GRPO, tmp_path, "train.minibatches=1", "train.steps=1").run()
    assert lines[1]["actor/ppo_kl"] == pytest.approx(0, abs=1e-6)
    assert lines[1]["actor/pg_clipfrac"] == 0
    lines = made(GRPO, tmp_path, "train.epochs=4", "train.steps=1", "train.lr=0.05").run()
    assert abs(lines[1]["actor/ppo_kl"]) > 1e-4


def test_a_correction_that_looks_at_the_policy_first_is_shown_it_before_each_step(tmp_path):
    correction = {"use": "high-entropy", "top_entropy_quantile": 0.4, "denominator": "kept", "decide": "measure"}
    lines = made(GRPO | {"correction": correction}, tmp_path, "train.max_tokens=40").run()
    for line in lines[1:]:
        assert 0.4 < line["correction/high_entropy_dropped"] < 0.7


def test_rewards_and_filters_of_a_recipe_reach_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shaping.py").write_text(SHAPING)
    recipe = GRPO | {"plugins": ["shaping.py"], "reward": "halved", "filter": "first-half"}
    lines = made(recipe, tmp_path, "rollout.prompts=4").run()
    for line in lines[1:]:
        assert line["filter/first_half_kept"] == 0.5
        assert line["critic/rewards/mean"] == pytest.approx(line["critic/score/mean"] / 2, abs=1e-6)
        assert math.isfinite(line["actor/pg_loss"])


def test_a_kl_over_the_whole_vocabulary_trains(tmp_path):
    still, moved = (made(GRPO | {"kl": {"use": "full", "coef": 0.1}}, tmp_path, f"train.lr={lr}").run() for lr in (1e-9, 1e-2))
    assert abs(still[-1]["actor/kl_loss"]) < 1e-6
    assert moved[-1]["actor/kl_loss"] > 1e-3


# ── what is sampled and what is scored ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.6])
def test_the_samplers_log_probs_are_those_of_the_trainer(temperature, tmp_path):
    """Rollouts come from a cached forward of left-padded prompts, scores from one forward of everything: they agree."""
    recipe = GRPO | {"task": {"use": "add-numbers", "digits": 3}}
    trainer = made(recipe, tmp_path, f"rollout.temperature={temperature}", "rollout.prompts=8")
    trainer._warm_up()
    _, batch = rolled(trainer)
    assert len(set(batch.prompts)) > 1  # so the padding on the left differs
    torch.testing.assert_close(batch["old_log_prob"], batch["rollout_log_prob"], rtol=0, atol=1e-4)
    torch.testing.assert_close(batch["old_log_prob"], batch["ref_log_prob"], rtol=0, atol=0)


def test_a_log_prob_does_not_depend_on_its_neighbours_padding(tmp_path):
    recipe = GRPO | {"task": {"use": "add-numbers", "digits": 3}}
    trainer = made(recipe, tmp_path, "rollout.prompts=6")
    r = trainer.backend.generate([[1, 5, 6, 7], [1, 5, 6, 7, 8, 9, 10, 11]], 2, SamplingParams(6), seed=1)
    inputs, together = from_rollouts(r, [0.0] * 4, 2, 0)
    alone = [from_rollouts([x], [0.0], 1, 0) for x in r]
    both, _ = policy_scores(trainer.policy, inputs, together, 1.0)
    each = torch.cat([policy_scores(trainer.policy, i, b, 1.0)[0] for i, b in alone])
    torch.testing.assert_close(both, each, rtol=0, atol=1e-5)


def test_scores_of_parts_are_put_back_in_their_places():
    whole = Batch.from_packed([2, 0, 3, 1], old_log_prob=torch.arange(6.0))
    parts = [whole.take([3, 0]), whole.take([2]), whole.take([1])]
    assert all_at_once(parts, [p["old_log_prob"] for p in parts], whole).tolist() == [0, 1, 2, 3, 4, 5]


def test_scores_of_a_part_of_a_batch_are_put_back_too():
    """A minibatch keeps the places of its rows in the batch it was dealt from."""
    some = Batch.from_packed([2, 0, 3, 1], old_log_prob=torch.arange(6.0)).take([3, 0, 2])
    parts = [some.take([2, 0]), some.take([1])]
    assert all_at_once(parts, [p["old_log_prob"] for p in parts], some).tolist() == [5, 0, 1, 2, 3, 4]


def test_rollouts_become_a_batch(tmp_path):
    trainer = made(GRPO, tmp_path)
    inputs, batch, rewards = trainer._rollout()
    assert batch.groups == (0, 0, 1, 1, 2, 2)
    assert batch["rewards"].tolist() == rewards
    assert all(n == len(trainer.task.train_item(8 + i // 2).prompt) + 1 for i, n in enumerate(batch.prompts))
    assert inputs.ids.shape[1] == max(batch.prompts) + inputs.width
    assert batch["truncated"].tolist() == [float(trainer.chars.eos_id not in ids) for ids in batch.unpack(batch["token_ids"], -1).tolist()]


def test_a_warm_up_learns_at_its_own_rate(tmp_path):
    trainer = made(GRPO, tmp_path, "warm_up.steps=30", "warm_up.batch=16", "warm_up.lr=1e-2", "train.lr=1e-12")
    heard = []
    trainer.listen = heard.append
    trainer._warm_up()
    assert heard[-1]["loss"] < 0.7 * heard[0]["loss"]
    assert trainer.objective.state_dict()["step"] == 0


@pytest.mark.parametrize("when", ["held-out", "warm-up", "rollout"])
def test_a_prompt_longer_than_the_context_is_an_error_and_is_not_cut(when, tmp_path):
    trainer = made(GRPO, tmp_path, f"warm_up.steps={int(when == 'warm-up')}")
    trainer.policy.context = 4
    with pytest.raises(LossaryError, match=r"has \d+ tokens; with \d+ to answer that is more than the model's context of 4"):
        trainer._rollout() if when == "rollout" else trainer.run()


@pytest.mark.slow
def test_ppo_learns_and_so_does_its_critic(tmp_path):
    lines = train(Settings.of(load_recipe("ppo")), tmp_path)[1]
    losses = [line["critic/vf_loss"] for line in lines if "critic/vf_loss" in line]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
    assert lines[-1]["eval/accuracy"] > lines[0]["eval/accuracy"] + 0.1
