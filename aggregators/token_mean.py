"""token-mean: every token of the step weighs the same."""

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation


@aggregation(
    claims=("sums-to-one",),
    paper="arXiv:2503.14476",
    scope="token",
    compat={
        "verl": "`token-mean`, its default.",
        "trl": "loss_type dapo, cispo and vespo; bnpo divides by the tokens of its micro-batch.",
        "skyrl": "`token_mean`; it scales the advantages, so it reaches only what is linear in them.",
        "openrlhf": "its default, and always for the KL and the entropy.",
        "nemo-rl": "token_level_loss.",
        "areal": "its default; it divides by the tokens before any rejection.",
        "slime": "--calculate-per-token-loss.",
        "roll": "`token-mean`, whose numerator has no mask there.",
        "torchrl": "`token_mean`.",
    },
)
def token_mean(sequences: Sequences, totals: Totals) -> PerToken:
    r"""Average over all tokens, so that a long answer counts for more than a short one; ``seq-mean-token-mean`` levels that.

    .. math:: w_t = 1 / N

    ``[N]`` float64; :math:`N` counts the tokens of all micro-batches and ranks. Equation 8 of the paper (DAPO).
    """
    return (1 / totals.tokens).expand(sequences.index.shape[0])
