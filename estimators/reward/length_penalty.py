"""A price on length: of answers to the same prompt those pay most that read, wrote and asked the most."""

from typing import Annotated

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import ColumnError, PerSequence, PerToken, reward_term
from ...registry.hyper import NonNegative
from ..advantage.standings import standings


@reward_term(
    scope="group",
    compat={"prime-rl": "use `length-penalty` and then `grpo: {scale: none}`; `prompt_lengths` counts all tokens that were not sampled."},
)
def length_penalty(
    rewards: PerSequence,
    sequences: Sequences,
    prompt_lengths: PerSequence | None = None,
    turns: PerToken | None = None,
    *,
    num_output_tokens_weight: Annotated[NonNegative, "share of the group's mean reward that the most sampled tokens cost"] = 0.25,
    num_input_tokens_weight: Annotated[NonNegative, "share of the group's mean reward that the longest prompt costs"] = 0.1,
    num_turns_weight: Annotated[NonNegative, "share of the group's mean reward that the most turns cost"] = 0.1,
) -> PerSequence:
    r"""Take a share of the *group's mean* from each reward, by its costs relative to the group's highest; ``overlong`` knows no group.

    .. math:: s'_i = s_i - \operatorname{mean}_g s \cdot \sum_c w_c\, \frac{c_i}{\max(1,\, \max_g c)}

    ``[S]``, in units of the reward. The costs :math:`c` are sampled tokens, ``prompt_lengths`` (which the host may let count whatever was
    read, tools' output included) and turns in which something was sampled. A group that earns nothing pays nothing, and one whose mean is
    negative pays its *longest* answers: it is made for rewards that are not negative. A weight above 0 whose column is missing raises
    ``ColumnError``, and so does a batch without ``group_ids``.
    """
    exact = rewards.to(accumulator(rewards))
    costs = [(num_output_tokens_weight, sequences.lengths)]
    if num_input_tokens_weight:
        costs.append((num_input_tokens_weight, _found("num_input_tokens_weight", "prompt_lengths", prompt_lengths)))
    if num_turns_weight:
        given = _found("num_turns_weight", "turns", turns)
        ends = (sequences.next(given, -1) != given) | sequences.is_last
        costs.append((num_turns_weight, sequences.sum(ends)))
    price = torch.stack([w * _relative(c.to(exact.dtype), sequences) for w, c in costs]).sum(0)
    return (exact - sequences.group_spread(sequences.group_mean(exact)) * price).to(rewards.dtype)


def _relative(cost: Tensor, sequences: Sequences) -> Tensor:
    """Return a cost as a share of the group's highest, over all ranks."""
    return cost / standings(cost, sequences).highest(sequences).clamp(min=1)


def _found(weight: str, name: str, column: Tensor | None) -> Tensor:
    if column is None:
        raise ColumnError(
            f"length-penalty with {weight} above 0 needs {name!r}, which the batch does not bring; say {weight}: 0 without it."
        )
    return column
