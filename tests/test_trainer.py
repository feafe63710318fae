"""The bundled trainer: the same run from the same seed, gradients that stay apart, and what it hands to an objective."""

import json
import math
import warnings

import pytest
import torch
from checkpoints import tensors_of

from lossary import Batch, LossaryError, PerToken, RecipeError, load_recipe, policy_loss
from lossary.pipeline import bundled_recipes
from lossary.trainer.data import from_rollouts
from lossary.trainer.loop import Trainer, train
from lossary.trainer.optimizing import Optimizing
from lossary.trainer.rollout import SamplingParams
from lossary.trainer.run_folder import RunFolder
from lossary.trainer.scoring import all_at_once, hidden_of, policy_scores, values_of
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


def made(recipe, tmp_path, *overrides, listen=lambda line: None):
    settings = Settings.of(load_recipe(recipe, overrides))
    return Trainer(settings, RunFolder.new(tmp_path, "run", "{}\n"), listen)


def rolled(trainer):
    """A rollout with everything that an update needs, as the loop makes it."""
    if trainer.needs_reference:
        trainer.reference = trainer._compared_with()
    inputs, batch, _ = trainer._rollout()
    return inputs, trainer.objective.estimate(trainer._remember(inputs, batch))


def timeless(line):
    return {k: v for k, v in line.items() if not k.startswith("time/")}


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}


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


# ── gradients ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("side", ["actor", "critic"])
def test_actor_and_critic_are_trained_apart(side, tmp_path):
    trainer = made(PPO, tmp_path)
    inputs, batch = rolled(trainer)
    weighed = trainer.objective.weigh(batch)
    log_prob, entropy = policy_scores(trainer.policy, inputs, weighed, 1.0)
    out = trainer.objective.loss(weighed, log_prob=log_prob, entropy=entropy, values=values_of(trainer.critic, inputs, weighed, None))
    getattr(out, side).backward()
    assert bool(gradients(trainer.policy)) == (side == "actor")
    assert bool(gradients(trainer.critic)) == (side == "critic")


def test_the_critic_has_an_optimizer_and_a_clip_of_its_own(tmp_path):
    trainer = made(PPO, tmp_path, "train.lr=1e-12", "train.critic_lr=0.1", "train.grad_clip=1e-3")
    actor, critic = ({n: p.detach().clone() for n, p in m.named_parameters()} for m in (trainer.policy, trainer.critic))
    inputs, batch = rolled(trainer)
    _, norms = trainer._take_step(trainer.objective, trainer.optimizing, inputs, batch)
    assert set(norms) == {"actor/grad_norm", "critic/grad_norm"}
    assert all(torch.allclose(p, actor[n], atol=1e-9) for n, p in trainer.policy.named_parameters())
    assert any(not torch.allclose(p, critic[n], atol=1e-3) for n, p in trainer.critic.named_parameters())
    assert not gradients(trainer.policy)


@pytest.mark.parametrize("recipe", [GRPO, PPO], ids=["grpo", "ppo"])
def test_micro_batches_give_the_gradient_of_the_whole(recipe, tmp_path):
    found = []
    for tokens in (16384, 12, 9):
        trainer = made(recipe, tmp_path, f"train.max_tokens={tokens}", "train.grad_clip=null")
        inputs, batch = rolled(trainer)
        parts = trainer.objective.split(trainer.objective.weigh(batch), tokens)
        outs, norms = trainer._take_step(trainer.objective, trainer.optimizing, inputs, batch)
        assert len(outs) == len(parts)
        weights = {n: p.detach().clone() for n, p in trainer.policy.named_parameters()}
        found.append((len(parts), norms, trainer.objective.metrics(outs), weights))
    assert found[0][0] == 1 < found[1][0] < found[2][0] + 1
    for _, norms, metrics, weights in found[1:]:
        assert norms == pytest.approx(found[0][1], rel=1e-5)
        assert metrics == pytest.approx(found[0][2], rel=1e-5, abs=1e-6)
        for name, p in weights.items():
            torch.testing.assert_close(p, found[0][3][name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("broken", ["actor", "critic"])
def test_a_gradient_that_is_not_finite_moves_nothing(broken, tmp_path):
    trainer = made(PPO, tmp_path)
    before = [p.detach().clone() for m in (trainer.policy, trainer.critic) for p in m.parameters()]
    for role, model in (("actor", trainer.policy), ("critic", trainer.critic)):
        for p in model.parameters():
            p.grad = torch.full_like(p, float("nan") if role == broken else 1.0)
    with pytest.raises(LossaryError, match=f"the {broken}'s gradient is not finite"):
        trainer.optimizing.step()
    after = [p for m in (trainer.policy, trainer.critic) for p in m.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_a_loss_that_explodes_ends_the_run_with_the_reason(tmp_path):
    @policy_loss
    def exploding(log_prob: PerToken) -> PerToken:
        """Explode."""
        return log_prob / 0.0

    trainer = made({"policy_loss": exploding} | TINY, tmp_path)
    four = r"step 2: 4 optimizer steps in a row were left out \(train.max_skipped is 3\); the last: the loss is not finite"
    with pytest.raises(LossaryError, match=four) as caught:
        trainer.run()
    assert "It comes from policy_loss 'exploding'. Not finite: actor/loss, actor/pg_loss." in str(caught.value)
    assert trainer.objective.state_dict()["step"] == 0


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_step_that_cannot_be_taken_is_left_out_and_counted(what, tmp_path):
    broken = {"now": False}

    class Breaks(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g * float("inf") if broken["now"] else g

    @policy_loss
    def moody(log_prob: PerToken) -> PerToken:
        """Break now and then."""
        return Breaks.apply(log_prob) if what == "gradient" else log_prob / (0.0 if broken["now"] else 1.0)

    def listen(line):
        if "warning" not in line:
            broken["now"] = line.get("step") == 1  # the second step is broken, the third is whole again

    trainer = made({"policy_loss": moody} | TINY, tmp_path, "train.steps=3", "train.minibatches=1", listen=listen)
    lines = trainer.run()
    assert "skipped_steps" not in lines[1]
    assert [line["skipped_steps"] for line in lines[2:]] == [1, 1]
    assert lines[2]["skipped_because"].startswith("the loss is not" if what == "loss" else "the actor's gradient is not finite")
    assert "actor/pg_loss" not in lines[2]
    assert {"actor/pg_loss", "actor/grad_norm"} <= set(lines[3])
    assert (trainer.objective.state_dict()["step"], trainer.optimizing.taken, trainer.skips.row) == (2, 2, 0)
    assert all(bool(torch.isfinite(p).all()) for p in trainer.policy.parameters())


def test_a_clip_of_null_leaves_the_gradient_alone(tmp_path):
    weights = []
    for clip in ("null", "1e9"):
        trainer = made(GRPO, tmp_path, f"train.grad_clip={clip}")
        trainer.run()
        weights.append(torch.cat([p.flatten() for p in trainer.policy.parameters()]))
    assert torch.equal(*weights)


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


# ── what a recipe may ask of it ──────────────────────────────────────────────────────────────────────────────────────


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


def test_a_warm_up_learns_at_its_own_rate(tmp_path):
    trainer = made(GRPO, tmp_path, "warm_up.steps=30", "warm_up.batch=16", "warm_up.lr=1e-2", "train.lr=1e-12")
    heard = []
    trainer.listen = heard.append
    trainer._warm_up()
    assert heard[-1]["loss"] < 0.7 * heard[0]["loss"]
    assert trainer.objective.state_dict()["step"] == 0


def test_an_optimizer_has_one_state_for_each_role(tmp_path):
    trainer = made(PPO, tmp_path)
    assert set(trainer.optimizing.optimizers) == {"actor", "critic"}
    assert set(Optimizing(trainer.settings.train, trainer.policy, None).optimizers) == {"actor"}


@pytest.mark.parametrize("critic", [{"trunk": "separate"}, {"trunk": "shared"}, {"trunk": "shared", "detach": False}], ids=str)
def test_a_value_teaches_the_policy_only_where_it_is_let(critic, tmp_path):
    trainer = made(PPO | {"critic": critic}, tmp_path)
    inputs, batch = rolled(trainer)
    weighed = trainer.objective.weigh(batch)
    hidden = hidden_of(trainer.policy, inputs, weighed)
    values = values_of(trainer.critic, inputs, weighed, hidden if critic["trunk"] == "shared" else None)
    policy = trainer.policy.lm_head.on(hidden)
    trainer.objective.loss(weighed, policy=policy, values=values).critic.backward(retain_graph=True)
    assert gradients(trainer.critic)
    taught = {n for n in gradients(trainer.policy)}
    assert bool(taught) == (critic.get("detach") is False)
    assert "lm_head.weight" not in taught
    trainer.optimizing.clear()
    trainer.objective.loss(weighed, policy=policy, values=values).actor.backward()
    assert gradients(trainer.policy)
    assert not gradients(trainer.critic)


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_a_role_that_rests_does_not_move_for_so_many_steps(role, tmp_path):
    trainer = made(PPO, tmp_path, f"train.freeze_{role}=2")
    inputs, batch = rolled(trainer)
    resting, other = (trainer.policy, trainer.critic) if role == "actor" else (trainer.critic, trainer.policy)

    def flat(model):
        return torch.cat([p.detach().flatten() for p in model.parameters()]).clone()

    for step in range(3):
        before, beside = flat(resting), flat(other)
        _, norms = trainer._take_step(trainer.objective, trainer.optimizing, inputs, batch)
        assert torch.equal(flat(resting), before) == (step < 2)
        assert not torch.equal(flat(other), beside)
        assert norms[f"{role}/grad_norm"] > 0


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
