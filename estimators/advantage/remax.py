"""ReMax: the greedy answer to the same prompt is the baseline."""

from collections.abc import Mapping

from torch import Tensor

from ...batch import Sequences
from ...registry import PerSequence, PerToken, advantage_estimator


@advantage_estimator(
    claims=("rewards-better", "scale-equivariant", "causal"),
    paper="arXiv:2310.10505",
    scope="sequence",
    compat={
        "verl": "`remax`: reward_baselines is baseline_rewards; it is not zero at masked places there.",
    },
)
def remax(token_rewards: PerToken, baseline_rewards: PerSequence, sequences: Sequences) -> Mapping[str, Tensor]:
    r"""Measure the rewards still to come against what the greedy answer earned: one more answer per prompt, where ``rloo`` needs a group.

    .. math:: A_t = \sum_{u \ge t} r_u - b_i

    ``[N]``, in units of the reward, and ``returns`` without the baseline. Nothing is discounted; what a tool wrote is skipped.
    """
    returns = sequences.reverse_scan(token_rewards)
    return {"advantages": returns - sequences.spread(baseline_rewards), "returns": returns}
