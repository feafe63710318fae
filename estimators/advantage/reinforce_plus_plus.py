"""REINFORCE++: rewards to go, whitened over the step; no groups and no critic."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from ...batch import Sequences
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Discount, NonNegative
from .whiten import whiten


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "unit-deviation"),
    deviates={"shift-invariant@other-numbers": "A discount makes what is added to all uneven over the tokens."},
    paper="arXiv:2501.03262",
    scope="step",
    compat={
        "verl": "`reinforce_plus_plus`, with gamma as there.",
        "skyrl": "`reinforce++`; it forgets the reward at every masked token, so early turns get none of it.",
        "openrlhf": "`reinforce`, which normalises by the biased deviation.",
        "slime": "`reinforce_plus_plus` with --normalize-advantages; gamma is also spent on masked tokens there.",
        "nemo-rl": "its `reinforce_plus_plus` adds up nothing that is to come: see `kl-penalty`.",
    },
)
def reinforce_plus_plus(
    token_rewards: PerToken,
    sequences: Sequences,
    *,
    gamma: Discount = 1.0,
    epsilon: Annotated[NonNegative, "added to the variance whose root divides"] = 1e-8,
) -> Mapping[str, Tensor]:
    r"""Give each token the rewards that are still to come, then whiten over all tokens: the baseline is the step, where ``grpo`` has the group.

    .. math:: R_t = r_t + \gamma R_{t+1}, \qquad A_t = \frac{R_t - \mu_R}{\sqrt{\sigma^2_R + \epsilon}}

    ``[N]``; advantages without unit, ``returns`` in units of the reward. :math:`t + 1` is the next *sampled* token: a tool's output costs
    no discount and does not cut the sum. Mean and unbiased variance are those of ``whiten``, over all ranks.
    """
    returns = sequences.reverse_scan(token_rewards, gamma)
    return {"advantages": whiten(returns, sequences, epsilon=epsilon), "returns": returns}
