"""Metrics are sums and counts until they are asked for: exact over micro-batches, epochs and ranks, in one transfer."""

import pytest
import torch

from lossary import Batch, ColumnError, Max, Mean, Min, PerToken, compose, policy_loss
from lossary.batch import ONE_RANK, SimulatedRanks
from lossary.pipeline.metrics import combined, measure

INF = float("inf")


@policy_loss(scope="token")
def reporting(log_prob: PerToken, advantages: PerToken) -> tuple[PerToken, dict]:
    """Report everything that can be reported."""
    good = advantages > 0
    return -advantages * log_prob, {
        "bare": log_prob,
        "good_mean": Mean(log_prob, good),
        "good_share": Mean(good),
        "top": Max(log_prob),
        "low": Min(log_prob, good),
        "number": 2.5,
        "count": Max(torch.ones_like(advantages).long()),
    }


LOGP = torch.tensor([-1.0, -2.0, -3.0, -4.0, -5.0, -6.0], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
EXPECTED = {
    "actor/bare": -3.5, "actor/good_mean": -2.0, "actor/good_share": 1 / 3, "actor/top": -1.0, "actor/low": -3.0, "actor/number": 2.5,
    "actor/count": 1.0, "actor/pg_loss": (LOGP * -ADVANTAGES).mean().item(), "actor/loss": (LOGP * -ADVANTAGES).mean().item(),
}  # fmt: skip


def run(o, rows, lengths=(3, 1, 2), micros=None):
    """The results of one step on some sequences, each micro-batch apart."""
    ends = torch.tensor([0, *lengths]).cumsum(0).tolist()
    where = torch.cat([torch.arange(ends[i], ends[i + 1]) for i in rows]) if rows else torch.zeros(0, dtype=torch.long)
    batch = Batch.from_packed([lengths[i] for i in rows], advantages=ADVANTAGES[where], old_log_prob=LOGP[where])
    weighed = o.weigh(batch)
    parts = [weighed] if micros is None else [weighed.take(m) for m in micros]
    return [o.loss(p, log_prob=p["old_log_prob"]) for p in parts]


@pytest.mark.parametrize("micros", [None, [[0, 1, 2]], [[0], [1], [2]], [[2, 0], [1]]])
def test_metrics_are_the_same_for_any_split(micros):
    o = compose({"policy_loss": reporting})
    assert o.metrics(run(o, [0, 1, 2], micros=micros)) == pytest.approx(EXPECTED)


@pytest.mark.parametrize("cut", [[[0, 1, 2]], [[0], [1, 2]], [[0], [1], [2]], [[2], [0, 1]]])
def test_metrics_are_the_same_over_ranks(cut):
    def work(ranks, rank):
        o = compose({"policy_loss": reporting}, ranks=ranks)
        return o.metrics(run(o, cut[rank]))

    for found in SimulatedRanks.run(len(cut), work):
        assert found == pytest.approx(EXPECTED)


def test_a_rank_without_a_token_has_a_part_in_them():
    def work(ranks, rank):
        o = compose({"policy_loss": reporting}, ranks=ranks)
        if rank == 0:
            return o.metrics(run(o, [0, 1, 2]))
        weighed = o.weigh(Batch.from_padded(torch.zeros(1, 2), advantages=torch.zeros(1, 2)))
        return o.metrics(o.loss(weighed, log_prob=torch.zeros(1, 2)))

    for found in SimulatedRanks.run(2, work):
        assert found == pytest.approx(EXPECTED)


def test_over_several_steps_a_loss_is_their_mean_and_a_metric_that_of_all_tokens():
    o, outs = compose({"policy_loss": reporting}), []
    for rows in ([0], [1], [2]):
        outs += run(o, rows)
        o.commit()
    found = o.metrics(outs)
    assert found["actor/bare"] == pytest.approx(-3.5)
    losses = [(1 - 2 + 3) / 3, -4.0, -5.5]
    assert found["actor/pg_loss"] == pytest.approx(sum(losses) / 3)


def test_results_may_be_handed_over_in_any_grouping():
    o = compose({"policy_loss": reporting})
    a, b, c = run(o, [0, 1, 2], micros=[[0], [1], [2]])
    assert o.metrics(a, b, c) == o.metrics([a, b], c) == o.metrics([a, b, c])
    assert o.metrics() == o.metrics([]) == {}


def test_estimates_are_reported_with_the_losses():
    o = compose({"policy_loss": "reinforce", "advantage": "rloo", "kl": {"use": "k1", "coef": 0.5, "apply": "reward"}})
    columns = {"old_log_prob": torch.tensor([0.2, 0.4, 0.0]), "ref_log_prob": torch.zeros(3)}
    batch = o.estimate(Batch.from_packed([2, 1], rewards=[1.0, 3.0], group_ids=[0, 0], **columns))
    found = o.metrics(o.loss(o.weigh(batch), log_prob=torch.zeros(3)), batch)
    expected = {
        "critic/score/mean": 2.0, "critic/score/max": 3.0, "critic/score/min": 1.0, "critic/rewards/mean": 1.85, "critic/rewards/max": 3.0,
        "critic/reward_kl": 0.2, "critic/kl_coef": 0.5, "critic/advantages/mean": 0.0,
    }  # fmt: skip
    assert {k: found[k] for k in expected} == pytest.approx(expected, abs=1e-6)
    assert o.metrics(batch).keys() < found.keys()


# ── one measure ──────────────────────────────────────────────────────────────────────────────────────────────────────


def told(*xs):
    """One metric as several micro-batches report it."""
    return combined([{"x": measure(x, "me")} for x in xs], ONE_RANK).get("x")


@pytest.mark.parametrize(
    ("xs", "value"),
    [
        ([3, 5.0], 4.0), ([True, False], 0.5), ([torch.tensor(2.0)], 2.0), ([torch.tensor([[1, 2], [3, 6]])], 3.0),
        ([torch.tensor([True, False]), torch.tensor([True])], 2 / 3),
        ([Mean(torch.tensor([1.0, INF]), torch.tensor([True, False]))], 1.0), ([Mean(torch.zeros(0)), torch.tensor([2.0])], 2.0),
        ([Max(torch.tensor([1, 7])), Max(torch.tensor([3, 4]))], 7.0), ([Min(torch.tensor([1, 7])), Min(torch.tensor([3, 4]))], 1.0),
        ([Max(torch.tensor([True, False]))], 1.0), ([Min(torch.tensor([True, False]))], 0.0),
        ([Max(torch.tensor([1.0, INF]), torch.tensor([True, False]))], 1.0), ([Min(torch.tensor([1.0, -INF]), torch.tensor([True, False]))], 1.0),
        ([Max(torch.zeros(0)), Max(torch.tensor([-3.0]))], -3.0), ([Min(torch.tensor(5))], 5.0),
        ([Mean(torch.zeros(0))], None), ([Max(torch.zeros(0))], None), ([Min(torch.ones(2), torch.zeros(2).bool())], None),
        ([torch.full((1000,), 0.1, dtype=torch.bfloat16)], 0.1),
    ],
)  # fmt: skip
def test_what_is_reported_adds_up(xs, value):
    assert told(*xs) == (None if value is None else pytest.approx(value, rel=2e-3))


def test_nothing_that_is_reported_keeps_a_graph():
    x = torch.ones(2, requires_grad=True)
    for report in (x, Mean(x), Max(x), Min(x, torch.tensor([True, False]))):
        assert not measure(report, "me").value.requires_grad


@pytest.mark.parametrize("wrong", ["much", None, [1.0], Mean(3.0), Max([1])])
def test_what_cannot_be_a_metric_is_told_by_name(wrong):
    @policy_loss
    def strange(log_prob: PerToken) -> tuple[PerToken, dict]:
        """Strange."""
        return log_prob, {"x": wrong}

    o = compose({"policy_loss": strange})
    with pytest.raises(ColumnError, match="policy_loss 'strange' reported"):
        o.loss(o.weigh(Batch.from_packed([1])), log_prob=torch.zeros(1))


@pytest.mark.parametrize("extra", ["x", 3, None])
def test_what_stands_beside_a_loss_is_a_report(extra):
    @policy_loss
    def strange(log_prob: PerToken) -> PerToken:
        """Strange."""
        return log_prob, extra

    o = compose({"policy_loss": strange})
    with pytest.raises(ColumnError, match=f"returned {type(extra).__name__} beside its result"):
        o.loss(o.weigh(Batch.from_packed([1])), log_prob=torch.zeros(1))


def test_the_device_is_waited_for_once_whatever_is_reported(monkeypatch):
    o = compose({"policy_loss": reporting, "entropy": 0.1})
    weighed = o.weigh(Batch.from_packed([3, 3], advantages=ADVANTAGES))
    outs = [o.loss(p, log_prob=LOGP[:3], entropy=-LOGP[:3]) for p in (weighed.take([0]), weighed.take([1]))]
    waits = []
    for name in ("tolist", "item", "cpu", "numpy", "__float__", "__bool__", "__int__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda self, *a, _n=name, _r=real, **k: (waits.append(_n), _r(self, *a, **k))[1])
    assert len(o.metrics(outs)) > 8
    assert waits == ["tolist"]


@pytest.mark.parametrize("where", [None, torch.arange(70_000) % 3 == 0])
def test_what_is_counted_is_counted_exactly(where):
    hits = torch.arange(70_000) % 7 != 0
    m = measure(Mean(hits, where=where), "x")
    chosen = hits if where is None else hits[where]
    assert (int(m.value), int(m.count)) == (sum(chosen.tolist()), chosen.numel())
