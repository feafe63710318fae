"""Overlong filtering: an answer that was cut off is neither right nor wrong, so it teaches nothing."""

from ...batch import Sequences
from ...registry import PerSequence, correction
from .levels import Keep


@correction(
    aliases=("overlong-filtering", "mask-truncated-completions"),
    scope="sequence",
    compat={
        "trl": "`mask_truncated_completions: true`.",
        "skyrl": "`apply_overlong_filtering: true`.",
        "nemo-rl": "`overlong_filtering: true`.",
        "ms-swift": "`overlong_filter: true`.",
        "roll": "`max_len_mask: true`.",
    },
)
def drop_truncated(truncated: PerSequence, sequences: Sequences) -> Keep:
    r"""Drop every token of a sequence that was cut at the length limit; a filter would take its reward out of the group as well.

    .. math:: \text{kept where } truncated_i = 0

    ``[N]``. The rewards were counted before: they stay in the means and deviations of their group. Nothing is weighed. The sequence
    leaves by selection, so ``denominator`` decides whether the others count for more; an empty sequence stays as it is.
    """
    return None, sequences.spread(truncated == 0)
