"""token-sum: no average at all."""

from ..batch import Sequences
from ..numerics import accumulator
from ..registry import PerToken, aggregation


@aggregation(
    scope="token",
    compat={
        "verl": "`token-sum`.",
        "tinker": "what all its losses do.",
    },
)
def token_sum(sequences: Sequences) -> PerToken:
    r"""Add up all tokens; unlike with ``token-mean`` the size of a step grows with the batch, and the learning rate must know.

    .. math:: w_t = 1

    ``[N]`` float64.
    """
    return sequences.lengths.new_ones(sequences.index.shape[0], dtype=accumulator(sequences.lengths))
