"""REINFORCE++ with a baseline: the group says what is better, the step says how much that is."""

from typing import Annotated, Literal

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import Singleton, centred
from .whiten import whiten


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "unit-deviation"),
    paper="arXiv:2501.03262",
    scope="step",
    compat={
        "verl": "`reinforce_plus_plus_baseline`, singleton: reward.",
        "openrlhf": "`reinforce_baseline`, with the KL to come in between and the biased deviation.",
        "slime": "see `kl-penalty`; its whitening stands apart.",
        "ms-swift": "`reinforce_plus_plus`: over: sequences, epsilon: 1e-4.",
    },
)
def reinforce_plus_plus_baseline(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    over: Annotated[Literal["tokens", "sequences"], "what the step's moments are taken over"] = "tokens",
    epsilon: Annotated[NonNegative, "added to the variance whose root divides; over sequences: to the deviation"] = 1e-8,
    singleton: Singleton = "zero",
) -> PerToken:
    r"""Measure each reward against its group's mean and whiten over the step: ``grpo`` with one deviation for all groups.

    .. math:: x_i = s_i - \operatorname{mean}_g s, \qquad A_t = \frac{x_i - \mu_x}{\sqrt{\sigma^2_x + \epsilon}}

    ``[N]``, without unit. The moments are those of ``whiten`` over tokens, where long answers weigh more; over ``sequences`` the mean of
    the :math:`x_i` is 0 already and only the unbiased deviation divides, with :math:`\epsilon` added to it (ms-swift). Ties and singletons
    as in ``grpo``. A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, _ = centred(rewards, sequences, singleton)
    if over == "sequences":
        deviation = sequences.moments(apart)[2].sqrt()
        return sequences.spread(safe_divide(apart, deviation + epsilon).to(rewards.dtype))
    return whiten(sequences.spread(apart), sequences, epsilon=epsilon).to(rewards.dtype)
