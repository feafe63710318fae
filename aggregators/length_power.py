"""length-power: anywhere between every token and every sequence weighing the same."""

from typing import Annotated

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation
from ..registry.hyper import Fraction


@aggregation(deviates={"referenced": "No paper or framework is known that has it."})
def length_power(
    sequences: Sequences,
    totals: Totals,
    *,
    exponent: Annotated[Fraction, "power of a sequence's length that divides: 0 adds up its tokens, 1 averages them"] = 0.5,
) -> PerToken:
    r"""Divide the sum over each sequence by a power of its length: ``seq-mean-token-mean`` at 1, ``seq-mean-token-sum`` at 0.

    .. math:: w_t = \frac{1}{n_i^p\, S}

    ``[N]`` float64; :math:`n_i` is the length of the token's sequence, :math:`S` counts the sequences of all micro-batches and ranks. The
    size of a step grows with lengths as :math:`n^{1 - p}`.
    """
    lengths = sequences.lengths.clamp(min=1).to(totals.sequences.dtype)
    return sequences.spread(1 / (lengths**exponent * totals.sequences))
