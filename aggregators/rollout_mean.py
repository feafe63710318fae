"""rollout-mean: a rollout that was cut into several sequences is averaged over all of its tokens."""

from ..batch import Sequences
from ..registry import PerSequence, PerToken, Totals, aggregation


@aggregation(
    scope="token",
    compat={"slime": "its default where samples are split from one rollout: their shared denominator is `rollout_lengths`."},
)
def rollout_mean(sequences: Sequences, totals: Totals, rollout_lengths: PerSequence) -> PerToken:
    r"""Divide by the length of the *rollout*, as the batch says it: ``seq-mean-token-mean`` would let each part weigh as much as a whole.

    .. math:: w_t = \frac{1}{\max(1, n^{rollout}_i)\, S}

    ``[N]`` float64; :math:`n^{rollout}_i` is ``rollout_lengths`` of the token's sequence, in sampled tokens, and :math:`S` counts the
    sequences (the parts) of all micro-batches and ranks. Where no rollout was cut it equals ``seq-mean-token-mean``.
    """
    lengths = rollout_lengths.clamp(min=1).to(totals.sequences.dtype)
    return sequences.spread(1 / (lengths * totals.sequences))
