"""token-mean: every token of the step weighs the same."""

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation


@aggregation(paper="arXiv:2503.14476", scope="token")
def token_mean(sequences: Sequences, totals: Totals) -> PerToken:
    r"""Average over all tokens, so that a long answer counts for more than a short one; ``seq-mean-token-mean`` levels that.

    .. math:: w_t = 1 / N

    ``[N]`` float64; :math:`N` counts the tokens of all micro-batches and ranks. Equation 8 of the paper (DAPO).
    """
    return (1 / totals.tokens).expand(sequences.index.shape[0])
