"""GRPO by the turn: what is still to come from a turn on, measured against how the group began."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount, Epsilon
from .groups import Singleton, centred
from .turns import Turns


@advantage_estimator(
    aliases=("grpo_per_step",),
    paper="arXiv:2511.17052",
    scope="group",
    claims=(
        "rewards-better",
        "scale-invariant",
    ),
)
def grpo_per_turn(
    turn_rewards: PerSequence,
    turns: PerToken,
    sequences: Sequences,
    *,
    gamma: Annotated[Discount, "decay per turn"] = 0.9,
    scale: Annotated[Literal["group-std", "none"], "what divides: the deviation of the group's first returns, or nothing"] = "group-std",
    epsilon: Epsilon = 1e-6,
    singleton: Singleton = "zero",
) -> PerToken:
    r"""Give the tokens of a turn its discounted return in the units of the group's first returns, where ``mt-grpo`` compares like turns.

    .. math:: G_{i,k} = s_{i,k} + \gamma G_{i,k+1}, \qquad A_t = \frac{G_{i,k(t)} - \operatorname{mean}_g G_0}{\operatorname{std}_g G_0 + \epsilon}

    ``[N]``, without unit (``none``: in units of the reward). ``turn_rewards`` is ``[S, K]``, 0 for turns that a sequence does not have, and
    ``turns`` counts from 0; a turn past :math:`K` gives 0. Where the first returns of a group are tied there is no unit and all is 0. Alone
    in its group a sequence gives 0, or with ``singleton: reward`` its returns. A batch without ``group_ids`` raises ``ColumnError``.
    """
    count = turn_rewards.shape[1]
    exact = turn_rewards.to(accumulator(turn_rewards))
    ahead = torch.arange(count, device=exact.device)
    power = ahead[:, None] - ahead[None, :]
    base = torch.full((), gamma, dtype=exact.dtype, device=exact.device)
    returns = exact @ torch.where(power >= 0, base ** power.clamp(min=0), 0.0)
    apart, deviation = centred(returns[:, 0], sequences, singleton)
    alone = sequences.group_spread(sequences.group_size()) == 1
    mean = sequences.group_spread(sequences.group_mean(returns[:, 0]))
    if singleton == "reward":
        mean = torch.where(alone, 0.0, mean)
    above = returns - mean[:, None]
    if singleton == "zero":
        above = torch.where(alone[:, None], 0.0, above)
    if scale == "group-std":
        untied = sequences.group_spread(sequences.group_sum((apart != 0).to(apart.dtype))) > 0
        above = torch.where(untied[:, None], safe_divide(above, (deviation + epsilon)[:, None]), 0.0)
    return Turns.of(turns, count, sequences).spread(above).to(turn_rewards.dtype)
