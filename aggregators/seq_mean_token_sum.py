"""seq-mean-token-sum: every sequence adds up its tokens."""

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation


@aggregation(
    scope="token",
    compat={
        "verl": "`seq-mean-token-sum`.",
        "trl": "loss_type luspo.",
    },
)
def seq_mean_token_sum(sequences: Sequences, totals: Totals) -> PerToken:
    r"""Add up the tokens of each sequence and average over sequences; like ``token-mean`` without its dependence on the mean length.

    .. math:: w_t = 1 / S

    ``[N]`` float64; :math:`S` counts the sequences of all micro-batches and ranks.
    """
    return (1 / totals.sequences).expand(sequences.index.shape[0])
