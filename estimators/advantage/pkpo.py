"""PKPO: what each answer adds to the best of k, for rewards of any size."""

from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import log_choose
from ...registry import PerSequence, advantage_estimator
from .groups import centred
from .standings import standings

Draws = Annotated[int, Field(ge=2, le=65536, description="how many answers are drawn, of which the best counts")]


@advantage_estimator(paper="arXiv:2505.15201", scope="group", claims=("scale-equivariant",))
def pkpo(rewards: PerSequence, sequences: Sequences, *, k: Draws = 4) -> PerSequence:
    r"""Credit each answer with how much higher the best of :math:`k` is for its being drawn: ``passk-analytic`` for real rewards.

    .. math:: A_i = \frac{1}{\binom{n}{k}} \sum_{|I| = k,\; i \in I} \bigl(\max_{j \in I} s_j - \max_{j \in I \setminus i} s_j\bigr)
        = \frac{1}{\binom{n}{k}} \sum_{j < i} \binom{j}{k - 2} \bigl(s_{(i)} - s_{(j)}\bigr)

    ``[S]``, in units of the reward; never negative. The second form counts places from 0 in the sorted group, so one sort and two running
    sums do for all subsets, exactly. The :math:`k - 1` lowest of a group get 0, and so does a tied group or one with fewer than :math:`k`
    sequences. :math:`k = 1` would be ``grpo`` without a deviation. Equation 33 of the paper.
    """
    apart, _ = centred(rewards, sequences, "zero")
    table = standings(apart, sequences)
    n = table.ladder.spread(table.ladder.lengths).to(apart.dtype)
    ways = log_choose(table.ladder.places.to(apart.dtype), k - 2) - log_choose(n.clamp(min=k), k)
    weight = torch.where(n >= k, ways.exp(), 0.0)
    # All weights below a place, and all weighted scores below it: the place itself adds 0 to their difference.
    count, total = table.ladder.cumsum(weight), table.ladder.cumsum(weight * table.scores)
    return (apart * count.index_select(0, table.mine) - total.index_select(0, table.mine)).clamp(min=0).to(rewards.dtype)
