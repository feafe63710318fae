"""Where a gradient comes from, against numbers made by hand and float64 autograd."""

import json
import math

import pytest
import torch

import lossary
from lossary.batch import Batch
from lossary.diagnostics.forensics import OnParameters, forensics
from lossary.registry import LossaryError

TWO = {
    "policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
    "kl": {"use": "k2", "coef": 0.5, "apply": "loss"},
    "aggregation": "token-mean",
}


def case(recipe=TWO, lengths=(3, 1, 4), seed=0):
    torch.manual_seed(seed)
    n = sum(lengths)
    old = (-torch.rand(n) - 0.1).double()
    objective = lossary.compose(recipe)
    batch = Batch.from_packed(list(lengths), old_log_prob=old, ref_log_prob=old - 0.3 * torch.rand(n), advantages=torch.randn(n).double())
    return objective, objective.weigh(batch), {"log_prob": old + 0.3 * torch.randn(n)}


def by_hand(batch, columns):
    """The two gradients from their closed forms."""
    lp, old, ref, a = columns["log_prob"], batch["old_log_prob"], batch["ref_log_prob"], batch["advantages"]
    r = (lp - old).exp()
    clipped = ((a > 0) & (r > 1.2)) | ((a < 0) & (r < 0.8))
    return torch.where(clipped, 0.0, -a * r) / len(lp), 0.5 * (lp - ref) / len(lp)


def test_shares_norms_and_cosines_are_those_of_closed_forms():
    objective, batch, columns = case()
    policy, kl = by_hand(batch, columns)
    gram = forensics(objective, batch, columns).columns["log_prob"]
    total = policy + kl
    assert gram.norm("policy") == pytest.approx(float(policy.norm()))
    assert gram.norm("kl") == pytest.approx(float(kl.norm()))
    assert gram.total_norm == pytest.approx(float(total.norm()))
    assert gram.cosine("policy", "kl") == pytest.approx(float(policy @ kl / policy.norm() / kl.norm()))
    assert gram.share("policy") == pytest.approx(float(policy @ total / (total @ total)))
    assert gram.share("policy") + gram.share("kl") == pytest.approx(1)
    assert gram.conflict is None


def test_effective_weights_are_the_ratio_inside_the_clip_and_nothing_outside():
    objective, batch, columns = case()
    a, r = batch["advantages"], (columns["log_prob"] - batch["old_log_prob"]).exp()
    clipped = ((a > 0) & (r > 1.2)) | ((a < 0) & (r < 0.8))
    g = torch.where(clipped, 0.0, r)
    assert 0 < clipped.sum() < len(g)
    found = forensics(objective, batch, columns).weights.all
    assert found.count == len(g)
    assert found.mean == pytest.approx(float(g.mean()))
    assert found.ess == pytest.approx(float(g.sum() ** 2 / (g * g).sum() / len(g)))
    assert found.zeroed_share == pytest.approx(float(clipped.double().mean()))
    assert found.flipped_share == 0


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean", "token-sum"])
@pytest.mark.parametrize("coef", [1.0, 3.0])
def test_reinforce_has_the_effective_weight_one_whatever_the_aggregation(aggregation, coef):
    objective, batch, columns = case({"policy_loss": {"use": "reinforce", "coef": coef}, "aggregation": aggregation})
    found = forensics(objective, batch, columns).weights.all
    assert found.mean == pytest.approx(1)
    assert found.ess == pytest.approx(1)


@lossary.policy_loss
def backwards(log_prob: lossary.PerToken, advantages: lossary.PerToken) -> lossary.PerToken:
    r"""Push every third token the wrong way; unlike ``reinforce`` it does not learn.

    .. math:: L_t = s_t A_t \ell_t
    """
    sign = torch.where(torch.arange(log_prob.shape[0], device=log_prob.device) % 3 == 0, 1.0, -1.0)
    return sign * advantages * log_prob


def test_what_is_pushed_the_other_way_is_counted_by_sign_place_and_length():
    _, batch, columns = case()
    advantages = torch.tensor([1.0, -1.0, 2.0, 0.0, -1.0, 1.0, -3.0, 1.0]).double()
    objective = lossary.compose({"policy_loss": "backwards", "aggregation": "token-mean"}, components=[backwards])
    batch = objective.weigh(Batch.from_packed([3, 1, 4], advantages=advantages))
    weights = forensics(objective, batch, columns).weights
    assert (weights.all.count, weights.all.flipped) == (7, 2)  # tokens 0 and 6; token 3 has no advantage
    assert {name: (s.count, s.flipped) for name, s in weights.rows("sign")} == {"A > 0": (4, 1), "A < 0": (3, 1)}
    assert {name: (s.count, s.flipped) for name, s in weights.rows("position")} == {"0": (2, 1), "1": (2, 0), "2-3": (3, 1)}
    assert {name: (s.count, s.flipped) for name, s in weights.rows("length")} == {"2-3": (3, 1), "4-7": (4, 1)}


def test_micro_batches_add_up_exactly():
    objective, batch, columns = case(lengths=(3, 1, 4, 2, 6, 5))
    whole = forensics(objective, batch, columns)
    parts = objective.split(batch, parts=3)
    assert len(parts) == 3
    pieces = []
    for part in parts:
        at = torch.cat([torch.arange(batch.sequences.offsets[r], batch.sequences.offsets[r] + batch.lengths[r]) for r in part.rows])
        pieces.append(forensics(objective, part, {"log_prob": columns["log_prob"][at]}))
    added = pieces[0] + pieces[1] + pieces[2]
    assert torch.allclose(added.columns["log_prob"].products, whole.columns["log_prob"].products, rtol=1e-12)
    assert added.columns["log_prob"].size == whole.columns["log_prob"].size
    for table in ("by_sign", "by_position", "by_length"):
        assert torch.allclose(getattr(added.weights, table), getattr(whole.weights, table), rtol=1e-12)


def test_dropped_tokens_count_as_zeroed():
    band = {"use": "masked-is", "level": "token", "lower": 0.8, "upper": 1.25, "denominator": "kept"}
    objective = lossary.compose({"policy_loss": "reinforce", "aggregation": "token-mean", "correction": band})
    old, rollout = -torch.ones(4), -torch.ones(4)
    rollout[1] -= 1.0
    batch = Batch.from_packed([4], old_log_prob=old, rollout_log_prob=rollout, advantages=torch.ones(4))
    found = forensics(objective, objective.weigh(objective.estimate(batch)), {"log_prob": old}).weights.all
    assert (found.count, found.zeroed) == (4, 1)
    assert found.total == pytest.approx(3)


def test_gradients_on_parameters_see_actor_and_critic_pull_a_shared_trunk():
    torch.manual_seed(1)
    recipe = {
        "policy_loss": "reinforce",
        "value_loss": {"use": "clipped-mse", "coef": 0.5, "cliprange_value": 100.0},
        "aggregation": "token-mean",
    }
    objective = lossary.compose(recipe)
    n = 6
    batch = objective.weigh(Batch.from_packed([2, 4], advantages=torch.randn(n), returns=torch.randn(n), old_values=torch.zeros(n)))
    trunk, x = torch.nn.Linear(3, 4).double(), torch.randn(n, 3).double()
    hidden = trunk(x)
    log_prob, values = hidden[:, 0] - hidden[:, 1], hidden[:, 0] + hidden[:, 2]
    parts = OnParameters(objective, trunk.parameters())
    parts.add(batch, objective.loss(batch, log_prob=log_prob, values=values))
    gram = parts.gram()
    actor = -(batch["advantages"].double() * log_prob).sum() / n
    critic = 0.5 * 0.5 * ((values - batch["returns"].double()) ** 2).sum() / n
    ga, gc = (
        torch.cat([g.flatten() for g in torch.autograd.grad(v, list(trunk.parameters()), retain_graph=True)]) for v in (actor, critic)
    )
    assert gram.size == 16
    assert gram.norm("policy") == pytest.approx(float(ga.norm()))
    assert gram.norm("value") == pytest.approx(float(gc.norm()))
    assert gram.conflict == pytest.approx(float(ga @ gc / ga.norm() / gc.norm()))
    assert gram.conflict == gram.cosine("policy", "value")


def test_gradients_on_parameters_add_up_over_micro_batches():
    objective, batch, columns = case(lengths=(3, 1, 4, 2))
    scale = torch.nn.Parameter(torch.ones(()).double())
    whole, split = OnParameters(objective, [scale]), OnParameters(objective, [scale])
    whole.add(batch, objective.loss(batch, log_prob=scale * columns["log_prob"]))
    for part in objective.split(batch, parts=2):
        at = torch.cat([torch.arange(batch.sequences.offsets[r], batch.sequences.offsets[r] + batch.lengths[r]) for r in part.rows])
        split.add(part, objective.loss(part, log_prob=scale * columns["log_prob"][at]))
    assert torch.allclose(whole.gram().products, split.gram().products)


def test_questions_that_have_no_answer_say_so():
    objective, batch, columns = case()
    gram = forensics(objective, batch, columns).columns["log_prob"]
    with pytest.raises(LossaryError, match="no term 'klx'"):
        gram.norm("klx")
    with pytest.raises(LossaryError, match="none of the parameters learns"):
        OnParameters(objective, [torch.zeros(2)])
    parts = OnParameters(objective, [torch.nn.Parameter(torch.ones(1))])
    with pytest.raises(LossaryError, match="'policy' has no graph"):
        parts.add(batch, objective.loss(batch, log_prob=columns["log_prob"]))
    flat = forensics(*case({"policy_loss": "reinforce", "aggregation": "token-mean"}))
    assert flat.columns["log_prob"].cosine("policy", "policy") == pytest.approx(1)
    assert not math.isnan(flat.weights.all.mean)
    assert json.dumps(flat.weights.all.count)
