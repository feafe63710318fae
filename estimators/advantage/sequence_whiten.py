"""Whitening within each sequence: the shape of its advantages stays, their size and sum go."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Positive
from .groups import rounding_of


@advantage_estimator(
    claims=("shift-invariant", "scale-invariant"),
    aliases=("masked_normalize",),
    scope="sequence",
    compat={
        "openrlhf": "masked_normalize.",
    },
)
def sequence_whiten(
    advantages: PerToken, sequences: Sequences, *, floor: Annotated[Positive, "the least variance whose root divides"] = 1e-8
) -> PerToken:
    r"""Give the advantages of each sequence mean 0 and variance 1 over its tokens, where ``whiten`` does so over the step.

    .. math:: A'_t = \frac{A_t - \mu_i}{\sqrt{\max(\sigma_i^2, f)}}

    ``[N]``, without unit; :math:`\sigma_i^2` is biased. Equal advantages give 0, and so does a single token: after an estimator with one
    advantage per sequence nothing is left.
    """
    wide = advantages.to(accumulator(advantages))
    apart = wide - sequences.spread(sequences.mean(wide))
    variance = sequences.mean(apart.square())
    tied = variance.sqrt() <= rounding_of(sequences.mean(wide.square()), advantages.dtype)
    apart = torch.where(sequences.spread(tied), 0.0, apart)
    return (apart / sequences.spread(variance.clamp(min=floor).sqrt())).to(advantages.dtype)
