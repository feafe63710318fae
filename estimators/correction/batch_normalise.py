"""Self-normalised weights: divide by their mean over the step, so that a mismatch changes no learning rate."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import PerToken, correction
from .levels import Weight

Weighting = Annotated[Literal["token", "sequence"], "the mean weight is taken over tokens, or over sequences of their means"]


@correction(
    aliases=("self-normalise", "rollout-is-batch-normalize"),
    scope="step",
    compat={
        "verl": "`rollout_is_batch_normalize: true` after `truncated-is`: `weighting` is the level of the weight.",
        "slime": "mis.py's `tis_batch_normalize` at level `token`.",
    },
)
def batch_normalise(correction: PerToken, sequences: Sequences, *, weighting: Weighting = "token") -> Weight:
    r"""Return the factor that gives the weights made so far the mean 1; it stands last in a chain, after what truncates.

    .. math:: w'_t = \frac{w_t}{\bar w}

    ``[N]``, without unit. :math:`\bar w` is the mean of the column ``correction``, the product of the chain so far, over all tokens of
    all ranks, or with ``weighting: sequence`` over all sequences of their means, empty ones left out. Tokens that the chain has dropped
    are not in it. The weighted loss keeps its size and becomes biased, but consistent. Nothing is dropped.
    """
    wide = correction.to(accumulator(correction))
    live = sequences.lengths > 0
    x, count = (wide, torch.ones_like(wide)) if weighting == "token" else (sequences.mean(wide), live.to(wide.dtype))
    total, number = sequences.ranks.sum(torch.stack([torch.where(count > 0, x, 0.0).sum(), count.sum()])).unbind()
    factor = torch.where(total > 0, number / torch.where(total > 0, total, 1.0), 1.0)
    return factor.to(correction.dtype).expand_as(correction), None
