"""Pass@k training by the best answer alone: only the winner of a group is pushed, by how far it won."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon
from .groups import centred
from .standings import standings


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant"),
    paper="arXiv:2503.19595",
    scope="group",
    compat={
        "verl": "`grpo_passk`; without norm_adv_by_std_in_grpo scale: none.",
    },
)
def grpo_passk(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    scale: Annotated[Literal["group-std", "none"], "what divides: the deviation of the group, or nothing"] = "group-std",
    epsilon: Epsilon = 1e-6,
) -> PerSequence:
    r"""Give the best of each group its lead over the second best, and all others 0, where ``grpo`` also punishes.

    .. math:: A_{best} = \frac{s_{(1)} - s_{(2)}}{\operatorname{std}_g s + \epsilon}, \qquad A_{others} = 0

    ``[S]``, without unit (``none``: in units of the reward); never negative. Two that share the first place lead by 0, a tied group gives
    0, and so does a sequence alone in its group, which beats nobody. The deviation is the unbiased one of the group. A batch without
    ``group_ids`` raises ``ColumnError``.
    """
    apart, deviation = centred(rewards, sequences, "zero")
    table = standings(apart, sequences)
    size = sequences.group_spread(sequences.group_size())
    below = table.scores.index_select(0, (table.mine - 1).clamp(min=0))
    lead = torch.where((table.place == size - 1) & (size > 1), apart - below, 0.0)
    return (lead if scale == "none" else safe_divide(lead, deviation + epsilon)).to(rewards.dtype)
