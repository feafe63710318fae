"""REINFORCE against all that was ever earned: a baseline that needs neither a group nor a large step."""

from typing import Annotated

from ...batch import Sequences
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon, Fraction
from .running import Moments, grown, no_moments, normalised


def _init(*, decay: float, epsilon: float, divide: bool) -> Moments:
    return no_moments()


@advantage_estimator(
    scope="step",
    claims=("rewards-better",),
    init=_init,
    compat={"roll": "use `running-baseline: {epsilon: 1e-6}` for reward normalisation with running moments."},
)
def running_baseline(
    rewards: PerSequence,
    sequences: Sequences,
    state: Moments,
    *,
    decay: Annotated[Fraction, "what the past counts at each new step; at 1 nothing is forgotten"] = 1.0,
    epsilon: Epsilon = 1e-8,
    divide: Annotated[bool, "whether the deviation divides; false: only the mean is subtracted"] = True,
) -> tuple[PerSequence, Moments]:
    r"""Measure each reward against the mean of all steps so far; ``reinforce-batch-mean`` knows only this one.

    .. math:: A_i = \frac{s_i - \mu}{\sigma + \epsilon}

    ``[S]``, without unit (``divide: false``: in units of the reward). :math:`\mu` and the unbiased :math:`\sigma` are those of all rewards
    of all committed steps and ranks and of this one; with ``decay`` a step counts that much less with each one that follows. They are kept
    in the state of the objective. Sequences without a token count, as in ``reinforce-batch-mean``. The very first reward gives 0.
    """
    moments = grown(state, rewards, sequences, decay)
    if not divide:
        return (rewards.to(moments["mean"].dtype) - moments["mean"]).to(rewards.dtype), moments
    return normalised(rewards, moments, epsilon, shift_mean=True), moments
