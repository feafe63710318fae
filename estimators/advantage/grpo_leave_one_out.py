"""GRPO measured against the others: RLOO's baseline with a deviation below it."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon
from .groups import Singleton, centred

Scale = Annotated[
    Literal["group-std", "others-std", "none"], "what divides: the deviation of the group, that of the others in it, or nothing"
]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "group-centred"),
    paper="arXiv:2402.14740",
    scope="group",
    compat={
        "nemo-rl": "its default, use_leave_one_out_baseline: scale: others-std; without normalize_rewards scale: none.",
    },
)
def grpo_leave_one_out(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    scale: Scale = "group-std",
    epsilon: Epsilon = 1e-6,
    singleton: Singleton = "zero",
) -> PerSequence:
    r"""Divide what ``rloo`` gives by a deviation: ``grpo`` with a baseline that does not contain the sequence itself.

    .. math:: A_i = \frac{s_i - \operatorname{mean}_{j \ne i} s_j}{\operatorname{std} + \epsilon}

    ``[S]``, without unit (``none``: in units of the reward, which is ``rloo``). The deviation is the unbiased one of the group, or that
    of the others alone (``others-std``, as in NeMo): it makes the one reward that differs huge, so where the others are tied, or are a
    single one, nothing is divided. Ties and singletons as in ``grpo``. A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, deviation = centred(rewards, sequences, singleton)
    size = sequences.group_spread(sequences.group_size()).to(apart.dtype)
    alone = size == 1
    left_out = torch.where(alone, apart, apart * size / (size - 1).clamp(min=1))
    if scale == "none":
        return left_out.to(rewards.dtype)
    if scale == "others-std":
        # Var of the others = (sum of squares - own square * n / (n - 1)) / (n - 2), all around the group's mean.
        own = apart.square() * size / (size - 1).clamp(min=1)
        whole = sequences.group_spread(sequences.group_sum(apart.square()))
        variance = safe_divide(whole - own, (size - 2).clamp(min=0))
        noise = whole * 64 * torch.finfo(apart.dtype).eps  # what cancels to rounding was nothing
        deviation = torch.where(variance > noise, variance.clamp(min=0), 0.0).sqrt()
    divided = torch.where(deviation > 0, deviation + epsilon, 1.0)
    return (left_out / divided).to(rewards.dtype)
