"""Random selection: uniform, reproducible, and the same for any split, order and rank."""

import pytest
import torch
from worlds import World

import lossary
from lossary import ColumnError, PerToken
from lossary.batch import SimulatedRanks
from lossary.numerics import hashed_uniform


@lossary.policy_loss(scope="token")
def lucky(log_prob, noise) -> PerToken:
    """Learn from tokens by chance."""
    return torch.where(noise < 0.5, -log_prob, 0.0)


def test_the_numbers_are_those_of_splitmix64():
    """By Python's unbounded integers, one after the other."""

    def mixed(x):
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = ((x ^ (x >> shift)) * factor) % 2**64
        return x ^ (x >> 31)

    def one(identity, place, seed, step):
        golden = 0x9E3779B97F4A7C15
        x = mixed(seed * golden % 2**64)
        for part in (step, identity, place):
            x = mixed(x ^ mixed((part + golden) % 2**64))
        return (x >> 11) * 2.0**-53

    ids, places = torch.tensor([0, 1, -5, 2**62, -(2**63)]), torch.tensor([0, 3, 7, 1, 100])
    for seed, step in ((0, 0), (7, 123456), (2**63, 5)):
        want = [one(i, p, seed, step) for i, p in zip(ids.tolist(), places.tolist(), strict=True)]
        assert hashed_uniform(ids, places, seed=seed, step=step).tolist() == want


def test_they_are_uniform_and_neighbours_know_nothing_of_each_other():
    ids, places = torch.arange(400).repeat_interleave(500), torch.arange(500).repeat(400)
    x = hashed_uniform(ids, places, seed=3, step=9)
    assert x.min() >= 0
    assert x.max() < 1
    counts = torch.histc(x, 20, 0, 1) / len(x)
    assert torch.allclose(counts, torch.full((20,), 0.05, dtype=torch.float64), atol=0.003)
    others = [x.roll(1), x.roll(500), hashed_uniform(ids, places, seed=4, step=9), hashed_uniform(ids, places, seed=3, step=10)]
    correlation = torch.corrcoef(torch.stack([x, *others]))[0, 1:]
    assert correlation.abs().max() < 0.01


def test_a_recipe_that_draws_gives_the_same_for_any_split_and_order_and_another_for_each_step_and_seed():
    world = World(1)
    objective = lossary.compose({"policy_loss": "lucky"}, components=[lucky], seed=5)

    def gradient(objective, rows, parts):
        leaf = world.log_prob.clone().requires_grad_()
        batch = world.batch(rows).without(["noise"])
        for micro in objective.split(
            objective.weigh(batch.with_columns(batch.levels["rewards"], sequence_ids=torch.tensor(rows))), parts=parts
        ):
            objective.loss(micro, log_prob=leaf[torch.tensor(rows)[micro.rows]]).total.backward()
        return leaf.grad

    everything = list(range(9))
    want = gradient(objective, everything, 1)
    assert 0 < (want != 0).sum() < world.mask.sum()
    for rows, parts in ((everything, 4), (everything[::-1], 1), (everything[::-1], 3)):
        assert torch.equal(gradient(objective, rows, parts), want)
    objective.commit()
    assert not torch.equal(gradient(objective, everything, 1), want)
    assert not torch.equal(gradient(lossary.Objective(objective.plan, seed=6), everything, 1), want)


def test_over_ranks_it_is_keyed_by_the_ids_of_sequences_and_refused_without():
    world = World(2)
    plan = lossary.compose({"policy_loss": "lucky"}, components=[lucky]).plan
    noise = {}
    for cut in ([9], [4, 5]):
        ends = [sum(cut[: i + 1]) for i in range(len(cut))]
        rows = [list(range(e - c, e)) for c, e in zip(cut, ends, strict=True)]

        def drawn(ranks, rank, rows=rows):
            batch = world.batch(rows[rank]).without(["noise"])
            batch = batch.with_columns(batch.levels["rewards"], sequence_ids=torch.tensor(rows[rank]))
            return lossary.Objective(plan, ranks).weigh(batch)["noise"]

        noise[len(cut)] = torch.cat(SimulatedRanks.run(len(cut), drawn))
    assert torch.equal(noise[1], noise[2])
    with pytest.raises(ColumnError, match="needs the column 'sequence_ids'"):
        SimulatedRanks.run(2, lambda ranks, _: lossary.Objective(plan, ranks).weigh(world.batch().without(["noise", "sequence_ids"])))


def test_noise_that_the_batch_brings_is_used():
    world = World(3)
    objective = lossary.compose({"policy_loss": "lucky"}, components=[lucky])
    assert torch.equal(objective.weigh(world.batch())["noise"], world.columns["noise"][world.mask])
    assert "noise" not in objective.needs()
