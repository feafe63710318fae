"""group-mean: every prompt weighs the same."""

from ..batch import Sequences
from ..registry import PerToken, Totals, aggregation


@aggregation(
    claims=("sums-to-one",),
    aliases=("prompt_mean",),
    scope="group",
    compat={
        "skyrl": "`prompt_mean`.",
    },
)
def group_mean(sequences: Sequences, totals: Totals) -> PerToken:
    r"""Average over all tokens of each group, then over groups: ``token-mean`` within a prompt, but no prompt outweighs another.

    .. math:: w_t = \frac{1}{N_g\, G}

    ``[N]`` float64; :math:`N_g` counts the tokens of the group on all ranks, :math:`G` the groups. A batch without ``group_ids`` raises
    ``ColumnError``.
    """
    tokens = sequences.group_sum(sequences.lengths.to(totals.groups.dtype)).clamp(min=1)
    return sequences.spread(sequences.group_spread(1 / (tokens * totals.groups)))
