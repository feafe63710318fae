"""REINFORCE against the step's mean: the simplest baseline that there is."""

from ...batch import Sequences
from ...registry import PerSequence, advantage_estimator


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-equivariant"),
    aliases=("flash_reinforce",),
    scope="step",
    compat={
        "openrlhf": "`flash_reinforce`; the KL to come is taken from it there.",
    },
)
def reinforce_batch_mean(rewards: PerSequence, sequences: Sequences) -> PerSequence:
    r"""Measure each reward against the mean of the step: unlike ``rloo`` it needs no groups, and a hard prompt looks like a bad answer.

    .. math:: A_i = s_i - \operatorname{mean}_{step} s

    ``[S]``, in units of the reward. The mean is that of all sequences of all ranks, empty ones included; a single one gives 0.
    """
    return (rewards.to(sequences.moments(rewards)[1].dtype) - sequences.moments(rewards)[1]).to(rewards.dtype)
