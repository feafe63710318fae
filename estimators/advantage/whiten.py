"""Whitening: whatever the estimator gave, shifted and scaled over all tokens of the step."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import rounding_of


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "unit-deviation"),
    scope="step",
    compat={
        "verl": "what its `gae` and both of its REINFORCE++ end with.",
        "openrlhf": "unbiased: false, over the rollout batch.",
        "slime": "--normalize-advantages.",
        "tunix": "what its `gae` ends with.",
    },
)
def whiten(
    advantages: PerToken,
    sequences: Sequences,
    *,
    unbiased: Annotated[bool, "whether the variance divides by one less than the count"] = True,
    epsilon: Annotated[NonNegative, "added to the variance whose root divides"] = 1e-8,
    shift_mean: Annotated[bool, "whether the mean becomes 0; false: it stays"] = True,
) -> PerToken:
    r"""Give the advantages of the step mean 0 and variance 1 over its *tokens*; unlike ``grpo`` it knows no groups, and long answers weigh more.

    .. math:: A'_t = \frac{A_t - \mu}{\sqrt{\sigma^2 + \epsilon}} \quad (+\,\mu \text{ unless the mean is shifted})

    ``[N]``, without unit. :math:`\mu` and :math:`\sigma^2` are taken over all tokens of all ranks. A single token gives 0, and so do
    equal ones, also when they differ by rounding: :math:`\epsilon` stands inside the root, and may be 0.
    """
    _, mean, variance = sequences.moments(advantages, unbiased=unbiased)
    tied = variance.sqrt() <= rounding_of(variance + mean.square(), advantages.dtype)
    white = safe_divide(torch.where(tied, 0.0, advantages.to(mean.dtype) - mean), (variance + epsilon).sqrt())
    return (white if shift_mean else white + mean).to(advantages.dtype)
