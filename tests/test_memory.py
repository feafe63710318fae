"""What an objective remembers: only of steps that were taken, exactly, and never of another recipe."""

import io
from collections.abc import Mapping

import pytest
import torch

from lossary import Batch, ColumnError, LossaryError, PerToken, SignatureError, advantage_estimator, compose, kl_estimator, policy_loss
from lossary.batch import SimulatedRanks
from lossary.pipeline.memory import observed
from lossary.registry import Level

KL = [0.2, 0.2, 0.01]
COEF = [0.1, 0.102, 0.10404, 0.1019592]
CONTROL = {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.05, "horizon": 100}


@kl_estimator(scope="token")
def given_kl(log_prob: PerToken, ref_log_prob: PerToken) -> PerToken:
    """The KL of a token is the reference's column."""
    return ref_log_prob + 0 * log_prob


def counted(**_):
    return {"seen": torch.zeros((), dtype=torch.float64)}


@advantage_estimator(init=counted)
def counting_too(rewards, state, *, by: float = 1.0):
    """Give how many rollouts were learned from."""
    return rewards * 0 + state["seen"], {"read": state["seen"]}, {"seen": state["seen"] + by}


def recipe(where):
    kl = {"use": given_kl, "apply": where, "coef": CONTROL}
    return {"policy_loss": "reinforce", "kl": kl, **({"advantage": "reinforce-plus-plus"} if where == "reward" else {})}


def batch(kl, n=10, **more):
    columns = {
        "old_log_prob": torch.zeros(n, 1),
        "ref_log_prob": torch.full((n, 1), kl),
        "rewards": torch.arange(n),
        "advantages": torch.ones(n),
    }
    return Batch.from_padded(torch.ones(n, 1), **{k: v.double() for k, v in columns.items()}, **more)


def coef_of(o, where, b):
    """Begin a step, run its loss, and return the coefficient that it used; the step is not yet taken."""
    estimated = o.estimate(b)
    weighed = o.weigh(estimated)
    for micro in o.split(weighed, parts=2):
        o.loss(micro, log_prob=torch.zeros(len(micro), 1).double())
    return weighed.coefficients["kl"].item() if where == "loss" else o.metrics(estimated)["critic/kl_coef"]


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_resume_o1_an_adaptive_coefficient_goes_on_where_it_stood(where):
    o, seen = compose(recipe(where)), []
    for i, kl in enumerate(KL):
        seen.append(coef_of(o, where, batch(kl)))
        o.commit()
        if i == 1:
            file = io.BytesIO()
            torch.save(o.state_dict(), file)
    seen.append(coef_of(o, where, batch(0.0)))
    assert seen == pytest.approx(COEF, abs=1e-12)
    file.seek(0)
    resumed = compose(recipe(where))
    resumed.load_state_dict(torch.load(file, weights_only=True))
    again = [coef_of(resumed, where, batch(KL[2]))]
    resumed.commit()
    again.append(coef_of(resumed, where, batch(0.0)))
    assert again == seen[2:]


@pytest.mark.parametrize("where", ["loss", "reward"])
def test_a_step_that_was_skipped_leaves_no_trace(where):
    o, plain = compose(recipe(where)), compose(recipe(where))
    for kl in KL:
        for wild in (50.0, 70.0):  # rollouts and losses that no commit follows
            coef_of(o, where, batch(wild))
        assert coef_of(o, where, batch(kl)) == coef_of(plain, where, batch(kl))
        o.commit()
        plain.commit()
    assert repr(o.state_dict()) == repr(plain.state_dict())


def test_a_reward_coefficient_moves_once_per_rollout_not_per_minibatch():
    o = compose(recipe("reward"))
    seen = []
    for kl in (*KL, 0.0):
        estimated = o.estimate(batch(kl))
        seen.append(o.metrics(estimated)["critic/kl_coef"])
        for mini in o.minibatches(estimated, 5, seed=0):
            o.loss(o.weigh(mini), log_prob=torch.zeros(2, 1).double())
            o.commit()
    assert seen == pytest.approx(COEF, abs=1e-12)
    assert o.state_dict()["step"] == 20


@pytest.mark.parametrize("where", ["loss", "reward"])
@pytest.mark.parametrize("cut", [[10], [4, 6], [1, 0, 9]])
def test_every_rank_has_the_same_coefficient(where, cut):
    def work(ranks, rank):
        o, seen = compose(recipe(where), ranks=ranks), []
        for kl in (*KL, 0.0):
            b = batch(kl, cut[rank]) if cut[rank] else batch(kl, 1).select(torch.tensor([False]))
            estimated = o.estimate(b)
            weighed = o.weigh(estimated)
            o.loss(weighed, log_prob=torch.zeros(len(b), 1).double())
            seen.append(weighed.coefficients["kl"].item() if where == "loss" else o.metrics(estimated)["critic/kl_coef"])
            o.commit()
        return seen

    for seen in SimulatedRanks.run(len(cut), work):
        assert seen == pytest.approx(COEF, abs=1e-12)


def test_an_estimator_may_keep_a_state_and_a_commit_makes_it_current():
    o = compose({"policy_loss": "reinforce", "advantage": {"use": counting_too, "by": 2.0}})
    advantages, read = [], []
    for taken in (False, True, False, False, True, True):
        estimated = o.estimate(batch(0.0))
        o.loss(o.weigh(estimated), log_prob=torch.ones(10, 1).double())
        advantages.append(estimated["advantages"][0].item())
        read.append(o.metrics(estimated)["critic/read"])
        if taken:
            o.commit()
    assert advantages == read == [0, 0, 2, 2, 2, 4]


def test_a_stateful_component_must_return_its_state():
    @advantage_estimator(init=counted)
    def forgetful(rewards, state):
        """Forget."""
        return rewards

    o = compose({"policy_loss": "reinforce", "advantage": forgetful})
    with pytest.raises(ColumnError, match=r"names 'state' and must return \(result, new_state\)"):
        o.estimate(batch(0.0))


def test_an_estimator_makes_no_column_but_its_own():
    @advantage_estimator
    def greedy(rewards, old_log_prob) -> Mapping[str, torch.Tensor]:
        """Overwrite what the sampler said."""
        return {"advantages": old_log_prob, "old_log_prob": old_log_prob * 0}

    o = compose({"policy_loss": "reinforce", "advantage": greedy})
    with pytest.raises(ColumnError, match=r"made the column 'old_log_prob'; an advantage estimator makes advantages and returns"):
        o.estimate(batch(0.0))


def test_a_coefficient_sees_sequences_as_what_they_are_even_where_there_are_as_many_as_tokens():
    sequences = Batch.from_packed([2, 0], advantages=torch.zeros(2)).sequences
    x = torch.tensor([3.0, 5.0])
    assert observed(x, sequences, Level.TOKEN).tolist() == [8, 2, 4, 1]
    assert observed(x, sequences, Level.SEQUENCE).tolist() == [8, 2, 8, 2]


def test_a_loss_keeps_no_state_for_it_runs_once_per_micro_batch():
    with pytest.raises(SignatureError, match=r"policy_loss must not read 'state'.*once per micro-batch"):

        @policy_loss(init=counted)
        def remembering(log_prob: PerToken, state):
            """Depends on the split."""
            return log_prob, state


def test_a_state_is_its_own_copy_in_each_objective():
    o = compose(recipe("loss"))
    coef_of(o, "loss", batch(0.2))
    o.commit()
    twin = compose(recipe("loss"))
    twin.load_state_dict(o.state_dict())
    twin_saw = coef_of(twin, "loss", batch(0.2))
    twin.commit()
    coef_of(twin, "loss", batch(0.2))
    twin.commit()
    assert coef_of(o, "loss", batch(0.2)) == twin_saw
    assert (o.state_dict()["step"], twin.state_dict()["step"]) == (1, 3)


def test_the_state_of_another_recipe_is_refused():
    adaptive, stateless = compose(recipe("loss")), compose({"policy_loss": "reinforce"})
    with pytest.raises(LossaryError, match=r"of another recipe: it has kl\.coef: adaptive-kl; this one has none"):
        stateless.load_state_dict(adaptive.state_dict())
    with pytest.raises(LossaryError, match=r"of another recipe: it has none; this one has kl\.coef: adaptive-kl"):
        adaptive.load_state_dict(stateless.state_dict())
    good = adaptive.state_dict()
    for bad in ({"policy": 1}, [1], {**good, "step": None}, {**good, "states": {"kl.coef": None}}):
        with pytest.raises(LossaryError, match=r"it comes from state_dict\(\)"):
            adaptive.load_state_dict(bad)
    one, other = (compose({"advantage": use, "policy_loss": "reinforce"}) for use in ("spo", "running-baseline"))
    with pytest.raises(LossaryError, match="it has advantage: spo; this one has advantage: running-baseline"):
        other.load_state_dict(one.state_dict())
    assert coef_of(adaptive, "loss", batch(0.2)) == 0.1  # a refusal changed nothing


def test_a_stateless_objective_still_counts_its_steps():
    o = compose({"policy_loss": "reinforce", "entropy": {"coef": {"use": "linear", "start": 1.0, "end": 0.0, "steps": 4}}})
    o.commit()
    o.commit()
    later = compose({"policy_loss": "reinforce", "entropy": {"coef": {"use": "linear", "start": 1.0, "end": 0.0, "steps": 4}}})
    later.load_state_dict(o.state_dict())
    assert later.weigh(batch(0.0)).coefficients["entropy"].item() == 0.5
