"""Repetition penalty: an answer that says the same again pays for the share of it that is not new."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, PerToken, reward_term

NgramSize = Annotated[int, Field(ge=1, le=1024, description="how many tokens in a row count as one saying")]
MaxPenalty = Annotated[float, Field(le=0, allow_inf_nan=False, description="what an answer pays in which nearly all is repeated")]


@reward_term(
    aliases=("repetition_penalty",),
    compat={"trl": "use `repetition`; get_repetition_penalty_reward is a reward function of its own with the same two settings."},
)
def repetition(
    rewards: PerSequence, token_ids: PerToken, sequences: Sequences, *, ngram_size: NgramSize = 3, max_penalty: MaxPenalty = -1.0
) -> PerSequence:
    r"""Add a penalty for n-grams that occur more than once; it reads what was said, where ``overlong`` only counts how much.

    .. math:: s'_i = s_i + \Bigl(1 - \frac{U_i}{n_i - k + 1}\Bigr)\, p

    ``[S]``, in units of the reward, like ``max_penalty`` :math:`p \le 0`; :math:`U_i` counts the different ones among the
    :math:`n_i - k + 1` runs of :math:`k` sampled tokens. What a tool wrote is skipped and breaks no run. A sequence shorter than one run
    pays nothing. Runs are told apart by exact ranks, never by a hash.
    """
    tokens = token_ids.shape[0]
    places, lengths = sequences.places, sequences.spread(sequences.lengths)
    rank, reach = _ranked(token_ids), 1
    while reach < ngram_size:  # the ranks of two runs that overlap tell all runs twice as long apart
        step = min(reach, ngram_size - reach)
        rank, reach = _ranked(rank * (tokens + 1) + rank.roll(-step)), reach + step
    whole = places + ngram_size <= lengths
    key = torch.where(whole, sequences.index * (tokens + 1) + rank, -1)  # what runs over the end of its sequence is one key of its own
    ordered = key.sort().values
    new = _first(ordered) & (ordered >= 0)
    owner = ordered.clamp(min=0) // (tokens + 1)
    unique = rewards.new_zeros(rewards.shape, dtype=torch.long).index_add(0, owner, new.long())
    total = (sequences.lengths - (ngram_size - 1)).clamp(min=0)
    repeated = safe_divide((total - unique).to(rewards.dtype), total.to(rewards.dtype))
    return rewards + max_penalty * repeated


def _first(ordered: Tensor) -> Tensor:
    """Return where a sorted row shows a value for the first time."""
    return torch.cat([ordered.new_ones(ordered[:1].shape, dtype=torch.bool), ordered[1:] != ordered[:-1]])


def _ranked(x: Tensor) -> Tensor:
    """Return each value's place among the distinct ones, from 0: equal values stay equal and no number grows past their count."""
    ordered, order = x.long().sort()
    return torch.zeros_like(order).index_copy(0, order, _first(ordered).long().cumsum(0) - 1)
