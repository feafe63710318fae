"""SPO: one answer per prompt is enough, if one remembers how the prompt went before."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon, Fraction, Positive
from .groups import rounding_of

Capacity = Annotated[int, Field(ge=1, le=2**20, description="how many prompts are remembered; the ones longest unseen go first")]
_LAST = torch.iinfo(torch.int64).max
Tracker = Mapping[str, Tensor]


def _init(*, rho: float, prior: float, prior_count: float, capacity: int, epsilon: float) -> Tracker:
    zeros = torch.zeros(capacity, dtype=torch.float64)
    seen = torch.zeros(capacity, dtype=torch.int64)
    return {
        "ids": torch.full_like(seen, _LAST),
        "seen": seen,
        "won": zeros,
        "lost": zeros.clone(),
        "time": torch.zeros((), dtype=torch.int64),
    }


@advantage_estimator(
    aliases=("single_stream",),
    paper="arXiv:2509.13232",
    scope="step",
    claims=("rewards-better",),
    init=_init,
    compat={
        "verl-recipe": "spo, whose rho follows the drift of the policy, from 0.875 to 0.96.",
    },
)
def spo(
    rewards: PerSequence,
    group_ids: PerSequence,
    sequences: Sequences,
    state: Tracker,
    *,
    rho: Annotated[Fraction, "what a prompt's past counts at each new step with an answer to it"] = 0.96,
    prior: Annotated[Fraction, "success rate of a prompt that is new"] = 0.5,
    prior_count: Annotated[Positive, "how many answers that first rate is worth"] = 8.0,
    capacity: Capacity = 65536,
    epsilon: Epsilon = 1e-8,
) -> tuple[PerSequence, Tracker]:
    r"""Measure each reward against the prompt's own success rate so far and normalise over the step: ``grpo`` with memory for a group.

    .. math:: x_i = s_i - \frac{\alpha}{\alpha + \beta}, \qquad A_i = \frac{x_i - \mu_x}{\sigma_x + \epsilon}, \qquad
        \alpha' = \rho\alpha + \textstyle\sum s, \qquad \beta' = \rho\beta + \textstyle\sum (1 - s)

    ``[S]``, without unit; rewards lie in [0, 1], and the tracker takes those outside for the nearer bound. A prompt *is* its ``group_ids``:
    they must be the same whenever it comes back, so name it by its text or its number in the data, never by a fresh id. A new prompt has
    the rate ``prior``, worth ``prior_count`` answers. All answers of a step, on whatever rank, are measured against the rate before it and
    then forgotten for once: :math:`\rho` is one number, where the paper makes it fall from 0.96 to 0.875 as the policy moves. The
    unbiased :math:`\sigma_x` is over all ranks. The table is kept in the state of the objective.
    """
    table = {name: x.to(rewards.device) for name, x in state.items()}
    won, lost = _known(table, group_ids, prior * prior_count, (1 - prior) * prior_count)
    apart = rewards.to(won.dtype) - safe_divide(won, won + lost)
    _, mean, variance = sequences.moments(apart)
    deviation = variance.sqrt()
    tied = deviation <= rounding_of(sequences.moments(rewards.square())[1], rewards.dtype)
    advantages = safe_divide(torch.where(tied, 0.0, apart - mean), deviation + epsilon).to(rewards.dtype)

    everyone, order = sequences.ranks.gather(group_ids).sort(stable=True)
    share = sequences.ranks.gather(rewards.to(won.dtype).clamp(0, 1)).index_select(0, order)
    first = torch.cat([everyone.new_ones(everyone[:1].shape, dtype=torch.bool), everyone[1:] != everyone[:-1]])
    prompt = first.long().cumsum(0) - 1
    before = _known(table, everyone, prior * prior_count, (1 - prior) * prior_count)
    added = (torch.zeros_like(share).index_add(0, prompt, x).index_select(0, prompt) for x in (share, 1 - share))
    new = [rho * old + more for old, more in zip(before, added, strict=True)]

    time = table["time"] + 1
    seen = torch.cat([torch.where(_among(table["ids"], everyone), 0, table["seen"]), torch.where(first, time, 0)])
    latest = seen.argsort(descending=True, stable=True)[: table["ids"].shape[0]]
    ids = torch.where(seen > 0, torch.cat([table["ids"], everyone]), _LAST)  # a free place is one never seen, and lies behind its like
    kept, by_id = ids.index_select(0, latest).sort(stable=True)
    where = latest.index_select(0, by_id)
    won, lost = (torch.cat([table[k], x]).index_select(0, where) for k, x in zip(("won", "lost"), new, strict=True))
    return advantages, {"ids": kept, "seen": seen.index_select(0, where), "won": won, "lost": lost, "time": time}


def _among(ids: Tensor, ordered: Tensor) -> Tensor:
    """Return which ids are among some in order."""
    spare = torch.cat([ordered, ordered.new_zeros(1)])
    place = torch.searchsorted(ordered, ids)
    return (spare.index_select(0, place) == ids) & (place < ordered.shape[0])


def _known(table: Tracker, ids: Tensor, won: float, lost: float) -> tuple[Tensor, Tensor]:
    """Return what the table says of each id, or what is said of a new one."""
    place = torch.searchsorted(table["ids"], ids.contiguous()).clamp(max=table["ids"].shape[0] - 1)
    known = (table["ids"].index_select(0, place) == ids) & (table["seen"].index_select(0, place) > 0)
    return torch.where(known, table["won"].index_select(0, place), won), torch.where(known, table["lost"].index_select(0, place), lost)
