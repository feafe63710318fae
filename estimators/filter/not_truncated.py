"""Answers that the length limit cut: nobody knows what they would have earned."""

from ...registry import PerSequence, sequence_filter


@sequence_filter(
    aliases=("truncated", "overlong_filter", "overlong_filtering", "mask_truncated_completions", "max_len_mask"),
    scope="token",
    compat={
        "trl": "mask_truncated_completions masks the same sequences in the loss; here they also leave the statistics of their group.",
        "skyrl": "apply_overlong_filtering masks the same sequences in the loss; here they also leave the statistics of their group.",
        "nemo-rl": "overlong_filtering masks the same sequences in the loss; here they also leave the statistics of their group.",
        "ms-swift": "overlong_filter masks the same sequences in the loss; here they also leave the statistics of their group.",
        "roll": "max_len_mask masks the same sequences in the loss; here they also leave the statistics of their group.",
    },
)
def not_truncated(truncated: PerSequence) -> PerSequence:
    """Keep the sequences that ended by themselves, so that cut ones count nowhere, where ``stop-properly`` makes them cheap.

    ``[S]`` bool. They also leave their group: what is left of it is compared without them.
    """
    return truncated == 0
