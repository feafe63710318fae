"""MaxRL: rare successes count for as much as they are rare."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import Singleton, centred


@advantage_estimator(
    claims=("rewards-better", "scale-invariant", "group-centred"),
    aliases=("max_rl",),
    paper="arXiv:2602.02710",
    scope="group",
    compat={
        "skyrl": "`maxrl`, singleton: reward.",
        "prime-rl": "`max_rl`: epsilon: 0; a group whose mean is not above 0 gives 0 there.",
    },
)
def maxrl(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    epsilon: Annotated[NonNegative, "added to the group's mean reward, which divides"] = 1e-6,
    singleton: Singleton = "zero",
) -> PerSequence:
    r"""Divide what is left of ``grpo`` by the group's mean instead of its deviation: the gradient of the log of the success rate.

    .. math:: A_i = \frac{s_i - \operatorname{mean}_g s}{\operatorname{mean}_g s + \epsilon}

    ``[S]``, without unit; at most :math:`n - 1` for rewards that are not negative, which is what it is made for. A group whose mean is 0 or
    below gives 0: dividing would turn its signs around. Ties and singletons as in ``grpo`` (``reward``: the reward itself).
    """
    apart, _ = centred(rewards, sequences, singleton)
    mean = sequences.group_spread(sequences.group_mean(rewards.to(apart.dtype)))
    scaled = safe_divide(torch.where(mean > 0, apart, 0.0), mean.clamp(min=0) + epsilon)
    if singleton == "reward":
        scaled = torch.where(sequences.group_spread(sequences.group_size()) == 1, apart, scaled)
    return scaled.to(rewards.dtype)
