"""Known faults of checkpoints, resumed runs and seeds: each by its number."""

import pytest
import torch
from torch import nn

from lossary import Batch, compose
from lossary.trainer import checkpoint
from lossary.trainer.optimizing import Optimizing
from lossary.trainer.randomness import seed_of, states, take_up
from lossary.trainer.ranks import Group
from lossary.trainer.settings import TrainSettings

ADAPTIVE = {"policy_loss": "ppo-clip", "kl": {"use": "k1", "coef": {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.05, "horizon": 100}}}


def t(x):
    return torch.tensor(x, dtype=torch.float64)


def stepped(objective, kl):
    """One committed step on ten sequences of one token whose KL is ``kl``; returns the coefficient that the next step will use."""
    ones = torch.ones(10, 1).double()
    batch = Batch.from_padded(ones, old_log_prob=0 * ones, advantages=ones, ref_log_prob=0 * ones)
    objective.loss(objective.weigh(batch), log_prob=(kl * ones).requires_grad_())
    objective.commit()
    out = objective.loss(objective.weigh(batch), log_prob=(0 * ones).requires_grad_())
    return objective.metrics(out)["actor/kl_coef"]


@pytest.mark.filterwarnings("ignore:kl. 'k1' as a loss")
def test_resume_o1_an_adaptive_coefficient_goes_on_where_it_stood(tmp_path):
    kls, wanted = [0.2, 0.2, 0.01], [0.102, 0.10404, 0.1019592]
    first = compose(ADAPTIVE)
    assert [stepped(first, kl) for kl in kls] == pytest.approx(wanted, abs=1e-12)
    before, after = compose(ADAPTIVE), compose(ADAPTIVE)
    for kl in kls[:2]:
        stepped(before, kl)
    checkpoint.save(tmp_path, {}, before.state_dict(), Group())
    after.load_state_dict(checkpoint.Saved(checkpoint.newest(tmp_path)).plain)
    assert stepped(after, kls[2]) == pytest.approx(wanted[2], abs=1e-12)


def saved_optimizer(tmp_path, factor=1.0):
    """An optimizer after one step, in a checkpoint."""
    model = nn.Linear(2, 1)
    optimizing = Optimizing(TrainSettings(lr=1e-5), model, None)
    optimizing.scale(factor)
    model(torch.ones(1, 2)).sum().backward()
    optimizing.step()
    tensors = {f"optimizer.{name}": x for name, x in optimizing.tensors().items()}
    checkpoint.save(tmp_path, tensors, optimizing.state_dict(), Group())
    return optimizing, checkpoint.Saved(checkpoint.newest(tmp_path))


def test_resume_o2_a_new_run_begins_at_its_own_step_and_rate():
    fresh = Optimizing(TrainSettings(lr=1e-5), nn.Linear(2, 1), None)
    assert (fresh.taken, fresh.optimizers["actor"].param_groups[0]["lr"]) == (0, 1e-5)


def test_resume_o3_a_rate_that_was_changed_on_the_way_is_restored(tmp_path):
    _, saved = saved_optimizer(tmp_path, factor=0.2)
    again = Optimizing(TrainSettings(lr=1e-5), nn.Linear(2, 1), None)
    again.load(saved, saved.plain, Group())
    assert again.optimizers["actor"].param_groups[0]["lr"] == pytest.approx(2e-6)
    for p in again.roles["actor"][0].parameters():
        p.grad = torch.ones_like(p)
    again.step()
    assert again.optimizers["actor"].param_groups[0]["lr"] == pytest.approx(2e-6)
    assert again.taken == 2


def test_resume_o4_every_rank_and_step_has_a_seed_of_its_own():
    seeds = [seed_of(7, "rollout", step, rank) for step in range(3) for rank in range(4)]
    assert len(set(seeds)) == 12
    assert seeds == [seed_of(7, "rollout", step, rank) for step in range(3) for rank in range(4)]


def test_resume_o5_a_run_in_two_pieces_draws_what_one_piece_draws():
    torch.manual_seed(11)
    begin = states(Group())
    whole = [(seed_of(11, "rollout", step), torch.rand(2).tolist()) for step in range(4)]
    take_up(begin, Group())
    pieces = [(seed_of(11, "rollout", step), torch.rand(2).tolist()) for step in range(2)]
    kept = states(Group())
    torch.manual_seed(11)  # another process begins anew
    take_up(kept, Group())
    pieces += [(seed_of(11, "rollout", step), torch.rand(2).tolist()) for step in range(2, 4)]
    assert pieces == whole


def clipped(**columns):
    """The loss, gradient and metrics of one row under the two-sided clip."""
    logp = columns.pop("logp").requires_grad_()
    old = "current" if "old_log_prob" not in columns else "recorded"
    o = compose({"policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2}, "old_log_prob": old})
    out = o.loss(o.weigh(Batch.from_padded(torch.ones(1, 2).double(), **columns)), log_prob=logp)
    out.total.backward()
    return out.total.item(), logp.grad, o.metrics(out)


def test_snapshot_o1_the_policy_as_its_own_old_self_has_a_gradient():
    loss, gradient, metrics = clipped(logp=t([[-1.0, -2.0]]), advantages=t([[1.0, -1.0]]))
    assert loss == pytest.approx(0, abs=1e-9)
    torch.testing.assert_close(gradient, t([[-0.5, 0.5]]), rtol=0, atol=1e-9)
    assert metrics["actor/pg_clipfrac"] == 0


def test_snapshot_o2_the_ratio_is_to_what_sampled():
    loss, gradient, _ = clipped(logp=t([[-1.0, -2.0]]), old_log_prob=t([[-1.5, -1.8]]), advantages=t([[1.0, 1.0]]))
    assert loss == pytest.approx(-1.00936537654, abs=1e-9)
    torch.testing.assert_close(gradient, t([[0.0, -0.409365376539]]), rtol=0, atol=1e-9)


def test_snapshot_o3_a_reference_is_asked_for_where_a_kl_needs_it():
    assert "ref_log_prob" not in compose({"policy_loss": "ppo-clip"}).needs("loss")
    assert "ref_log_prob" in {**compose({"policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": 0.01}}).needs("weigh")}


def test_snapshot_o4_a_snapshot_does_not_follow_the_policy():
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    with torch.no_grad():
        model.weight.fill_(-1.0)
    kept = model(torch.ones(1, 1).double()).detach().clone()
    with torch.no_grad():
        model.weight.fill_(-0.6)
    o = compose({"auxiliary": {"use": "entropy", "coef": 0.0}, "kl": {"use": "k3", "coef": 1.0}})
    batch = Batch.from_padded(torch.ones(1, 1), ref_log_prob=kept)
    out = o.loss(o.weigh(batch), log_prob=model(torch.ones(1, 1).double()), entropy=torch.zeros(1, 1).double())
    assert o.metrics(out)["actor/kl_loss"] == pytest.approx(0.0703200460356, abs=1e-9)
