"""How a batch is cut: host arithmetic only, at the widest scope of the objective's terms, with equal numbers of parts on every rank."""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch

from ..batch import Batch, Ranks, Sequences
from ..batch.layout import upload
from ..registry import ColumnError

SCOPES = ("token", "sequence", "group", "step")


def widest(scopes: Sequence[str]) -> str:
    """Return the widest of some scopes."""
    return max(scopes, key=SCOPES.index, default="token")


def units_of(batch: Batch, scope: str) -> list[list[int]]:
    """Return the sequences that must stay together: each alone, by group, or all."""
    if scope == "step":
        return [list(range(len(batch)))]
    if scope == "group" and batch.groups:
        units: dict[int, list[int]] = {}
        for i, g in enumerate(batch.groups):
            units.setdefault(g, []).append(i)
        return list(units.values())
    return [[i] for i in range(len(batch))]


def costs_of(batch: Batch, units: list[list[int]]) -> list[int]:
    """Return the tokens that a model must see for each unit: prompts (where known) and responses."""
    spans = [a + b for a, b in zip(batch.lengths, batch.prompts or [0] * len(batch), strict=True)]
    return [sum(spans[i] for i in unit) for unit in units]


def parts_needed(costs: list[int], max_tokens: int, what: str) -> int:
    """Return the fewest parts of at most ``max_tokens`` that the greedy rule finds; a unit that alone exceeds it is an error."""
    if costs and max(costs) > max_tokens:
        raise ColumnError(f"a {what} has {max(costs)} tokens and does not fit into max_tokens={max_tokens}; it cannot be cut further.")
    n = max(1, -(-sum(costs) // max_tokens))
    while max(sum(costs[i] for i in part) for part in packed(costs, n)) > max_tokens:
        n += 1
    return n


def packed(costs: list[int], n: int) -> list[list[int]]:
    """Spread units over ``n`` parts so that the largest is small: heaviest first, into the lightest part."""
    parts: list[list[int]] = [[] for _ in range(n)]
    loads = [0] * n
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        lightest = min(range(n), key=lambda p: (loads[p], len(parts[p])))
        parts[lightest].append(i)
        loads[lightest] += costs[i]
    return [sorted(part) for part in parts]


def dealt(batch: Batch, units: list[list[int]], n: int, seed: int, ranks: Ranks) -> list[list[int]]:
    """Deal the units of all ranks as one rank would, each keeping its own: what a part holds does not depend on where it lies.

    Waits for the device: ``sequence_ids`` says which sequence is which.
    """
    ids = batch["sequence_ids"]
    firsts = ids.index_select(0, upload([u[0] for u in units], ids.device)).tolist() if not batch.idle else []
    own = dict(zip(firsts, units, strict=not batch.idle))
    there = sorted(ranks.gather(ids.new_tensor(firsts)).tolist())
    if twice := [a for a, b in pairwise(there) if a == b]:  # seen by all ranks alike, so that none waits for another
        raise ColumnError(f"column 'sequence_ids' says {twice[0]} of two sequences of the step; one of them would never be learned from.")
    return [sorted(s for i in chosen for s in own.get(there[i], ())) for chosen in shuffled([[i] for i in range(len(there))], n, seed)]


def require_whole_groups(who: str, here: Sequences, whole: Sequences, ranks: Ranks) -> None:
    """Raise where a loss that compares the sequences of a group would see one rank's only, the others left out without a word."""
    cut = (whole.group_spread(whole.group_size()) != here.group_spread(here.group_size())).any()
    if ranks.max(cut.to(torch.float64).reshape(1))[0]:  # all ranks raise together, or the others would wait for this one
        raise ColumnError(f"{who} compares the sequences of a group, but some groups lie on more than one rank.")


def part_of(batch: Batch, sequences: list[int]) -> Batch:
    """Return the batch of some sequences, or, for none of them, one row to forward without any token that counts.

    A rank that has nothing to do must still run the model, or the others wait for it.
    """
    if sequences:
        return batch.take(sequences)
    if len(batch) == 0:
        raise ColumnError(
            "the batch has no sequence at all, so there is nothing a model could be run on; give every rank at least one row."
        )
    shortest = min(range(len(batch)), key=lambda i: batch.layout.spans[i])
    row = batch.take([shortest])
    return replace(row.select(torch.zeros_like(row.sequences.index, dtype=torch.bool)) if row.lengths[0] else row, idle=True)


def shuffled(units: list[list[int]], n: int, seed: int) -> list[list[int]]:
    """Deal units into ``n`` minibatches of nearly equal number, in an order that follows from ``seed`` alone."""
    if n > len(units):
        what = "sequences" if all(len(u) == 1 for u in units) else "groups"
        warnings.warn(f"{n} minibatches of {len(units)} {what}: {n - len(units)} of them have no token to learn from.", stacklevel=3)
    order = torch.randperm(len(units), generator=torch.Generator().manual_seed(seed)).tolist()
    size, extra = divmod(len(units), n)
    ends = [(i + 1) * size + min(i + 1, extra) for i in range(n)]
    parts = [order[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    return [sorted(s for u in chosen for s in units[u]) for chosen in parts]
