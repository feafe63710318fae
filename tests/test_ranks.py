"""Ranks: three reductions, alone and in threads that meet."""

import threading
import time

import pytest
import torch
from worlds import World

import lossary
from lossary import ColumnError
from lossary.batch import ONE_RANK, OneRank, SimulatedRanks


def test_one_rank_is_the_identity():
    x = torch.tensor([1.0, 2.0])
    assert ONE_RANK.sum(x) is ONE_RANK.max(x) is ONE_RANK.gather(x) is x
    assert (ONE_RANK.grad_average, isinstance(ONE_RANK, OneRank)) == (1, True)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_the_three_reductions(n):
    def work(ranks, rank):
        x = torch.tensor([float(rank), -float(rank)])
        return ranks.sum(x), ranks.max(x), ranks.gather(torch.full((rank, 2), rank)), ranks.grad_average, ranks.rank

    found = SimulatedRanks.run(n, work)
    total = sum(range(n))
    for rank, (added, highest, gathered, average, who) in enumerate(found):
        assert added.tolist() == [total, -total]
        assert highest.tolist() == [n - 1, 0.0]
        assert gathered[:, 0].tolist() == [r for r in range(n) for _ in range(r)]
        assert (average, who) == (n, rank)


def test_what_a_rank_does_to_its_own_tensor_afterwards_reaches_nobody():
    def work(ranks, rank):
        x = torch.ones(3)
        out = [ranks.sum(x) for _ in range(20)]
        x.add_(rank)
        return out, ranks.gather(x[:1])

    for sums, last in SimulatedRanks.run(3, work, grad_average=1):
        assert all(s.tolist() == [3.0] * 3 for s in sums)
        assert last.tolist() == [1.0, 2.0, 3.0]


def test_the_sum_is_added_in_the_order_of_the_ranks_so_all_get_the_same_bits():
    values = torch.randn(4, 100, generator=torch.Generator().manual_seed(0)) * 1e3
    found = SimulatedRanks.run(4, lambda ranks, rank: ranks.sum(values[rank]))
    assert all(x.equal(found[0]) for x in found)


def test_the_gradient_average_may_be_another_number():
    assert SimulatedRanks.run(2, lambda ranks, rank: ranks.grad_average, grad_average=1) == [1, 1]


def test_an_error_of_one_rank_frees_the_others_and_is_the_one_that_is_raised():
    def work(ranks, rank):
        if rank == 1:
            raise KeyError("mine")
        return ranks.sum(torch.ones(1))

    begin = time.monotonic()
    with pytest.raises(KeyError, match="mine"):
        SimulatedRanks.run(3, work)
    assert time.monotonic() - begin < 10
    assert not [t for t in threading.enumerate() if t is not threading.main_thread() and not t.daemon and t.name.endswith("(work)")]


def test_an_error_between_two_reductions_frees_the_others_too():
    def work(ranks, rank):
        ranks.sum(torch.ones(1))
        if rank == 0:
            raise ValueError("later")
        return ranks.max(torch.ones(1))

    with pytest.raises(ValueError, match="later"):
        SimulatedRanks.run(2, work)


def test_unequal_shapes_are_told_and_do_not_hang():
    with pytest.raises(RuntimeError):
        SimulatedRanks.run(2, lambda ranks, rank: ranks.sum(torch.ones(rank + 1)))


def test_ranks_that_do_not_all_meet_are_told_so():
    def work(ranks, rank):
        return ranks.sum(torch.ones(1)) if rank else None

    with pytest.raises(RuntimeError, match=r"the 2 ranks did not all meet in the same reductions within 0.2 s"):
        SimulatedRanks.run(2, work, timeout=0.2)


def test_two_sequences_of_one_id_are_refused_by_every_rank_before_one_is_lost():
    world, plan = World(4), lossary.compose({"policy_loss": "reinforce"}).plan
    rows = [[0, 1, 2], [3, 4, 5, 6]]

    def minis(ranks, rank, ids):
        batch = world.batch(rows[rank])
        batch = batch.with_columns(batch.levels["rewards"], sequence_ids=torch.tensor(ids[rank]))
        return [sorted(m["sequence_ids"].tolist()) for m in lossary.Objective(plan, ranks).minibatches(batch, 2, seed=1) if not m.idle]

    found = SimulatedRanks.run(2, lambda ranks, rank: minis(ranks, rank, [[10, 11, 12], [13, 14, 15, 16]]))
    assert sorted(i for mine in found for mini in mine for i in mini) == list(range(10, 17))
    for ids in ([[10, 11, 12], [13, 11, 15, 16]], [[10, 11, 11], [13, 14, 15, 16]]):
        with pytest.raises(ColumnError, match="column 'sequence_ids' says 11 of two sequences of the step"):
            SimulatedRanks.run(2, lambda ranks, rank, ids=ids: minis(ranks, rank, ids))
