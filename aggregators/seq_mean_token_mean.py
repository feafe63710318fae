"""seq-mean-token-mean: every sequence weighs the same."""

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation


@aggregation(
    claims=("sums-to-one",),
    aliases=("sequence_mean", "sequence_mean_token_mean"),
    paper="arXiv:2402.03300",
    compat={
        "verl": "`seq-mean-token-mean`.",
        "trl": "loss_type grpo and sapo; rows without a token count there.",
        "skyrl": "`sequence_mean`.",
        "openrlhf": "without token_level_loss, and always for `gspo`.",
        "nemo-rl": "without token_level_loss.",
        "slime": "its default.",
        "roll": "`seq-mean-token-mean`, its default.",
    },
)
def seq_mean_token_mean(sequences: Sequences, totals: Totals) -> PerToken:
    r"""Average over the tokens of each sequence, then over sequences: a token of a long answer weighs less, unlike with ``token-mean``.

    .. math:: w_t = \frac{1}{n_i\, S}

    ``[N]`` float64; :math:`n_i` is the length of the token's sequence, :math:`S` counts the sequences of all micro-batches and ranks.
    """
    lengths = sequences.lengths.clamp(min=1)  # an empty sequence has no token that could take the weight
    return sequences.spread(1 / (lengths.to(totals.sequences.dtype) * totals.sequences))
