"""Normalisation over the step as OpenRLHF and NeMo do it: with the biased deviation and a floor under it."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Positive
from .groups import rounding_of


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant"),
    aliases=("advantage_batch_normalize",),
    scope="step",
    compat={
        "openrlhf": "its normalisation of advantages; no_std_norm is std_norm: false.",
        "skyrl": "advantage_batch_normalize, whose mean there is over all places, padding too.",
    },
)
def batch_normalise(
    advantages: PerToken,
    sequences: Sequences,
    *,
    std_norm: Annotated[bool, "whether the deviation divides; false: only the mean is subtracted"] = True,
    floor: Annotated[Positive, "the least variance whose root divides"] = 1e-8,
) -> PerToken:
    r"""Give the advantages of the step mean 0 and variance 1 over its tokens; ``whiten`` adds to the variance what is a floor here.

    .. math:: A'_t = \frac{A_t - \mu}{\sqrt{\max(\sigma^2, f)}}

    ``[N]``, without unit; ``std_norm: false`` only shifts. :math:`\mu` and the biased :math:`\sigma^2` are taken over all tokens of all
    ranks, never over padding. Equal advantages give 0.
    """
    _, mean, variance = sequences.moments(advantages, unbiased=False)
    tied = variance.sqrt() <= rounding_of(variance + mean.square(), advantages.dtype)
    apart = torch.where(tied, 0.0, advantages.to(mean.dtype) - mean)
    return (apart / variance.clamp(min=floor).sqrt() if std_norm else apart).to(advantages.dtype)
