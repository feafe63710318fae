"""trusted-mean: a mean over tokens in which an answer counts as far as its grade is trusted."""

import torch
from lossary import PerSequence, PerToken, Sequences, aggregation
from lossary.numerics import safe_divide
from lossary.registry import Totals

from .columns import HIGHEST, LOWEST


@aggregation(scope="step", deviates={"referenced": "an idea of this package"})
def trusted_mean(sequences: Sequences, totals: Totals, trust: PerSequence | None = None) -> PerToken:
    r"""Average over all tokens, each weighed by the trust in its sequence; ``token-mean`` takes a coin flip for a proof.

    .. math:: w_t = \frac{c_i}{\sum_j n_j c_j}

    ``[N]`` float64; :math:`n_j` is the length of a sequence and :math:`c_j` its ``trust``, cut to 0..1; the sum goes over all sequences of
    the step, on every rank. The weights add up to 1, so doubt shifts weight to others and the size of a step stays; ``trusted-baseline``
    lets it shrink instead. Choose one of the two: together they square the trust. Without ``trust`` it is ``token-mean``. Where nobody
    is trusted all weights are 0.
    """
    lengths = sequences.lengths.to(totals.tokens.dtype)
    weight = torch.ones_like(lengths) if trust is None else trust.to(lengths.dtype).clamp(LOWEST, HIGHEST)
    count, mean, _ = sequences.moments(weight * lengths)
    return sequences.spread(safe_divide(weight, (count * mean).expand_as(weight)))
