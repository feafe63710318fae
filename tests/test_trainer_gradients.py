"""What the trainer's steps do with gradients: each role's stay apart, micro-batches add up to the whole, and a broken one moves nothing."""

import pytest
import torch
from tiny_runs import GRPO, PPO, TINY, made, rolled

from lossary import LossaryError, PerToken, policy_loss
from lossary.trainer.optimizing import Optimizing
from lossary.trainer.scoring import hidden_of, policy_scores, values_of


def gradients(model):
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None and (p.grad != 0).any()}


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
