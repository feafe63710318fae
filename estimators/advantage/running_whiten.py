"""Whitening with a memory: the unit of the advantages does not jump with every step."""

from typing import Annotated

from ...batch import Sequences
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Epsilon, Fraction
from .running import Moments, grown, no_moments, normalised


def _init(*, decay: float, epsilon: float, shift_mean: bool) -> Moments:
    return no_moments()


@advantage_estimator(
    scope="step", claims=("rewards-better",), init=_init, deviates={"referenced": "No paper or framework is known that has it."}
)
def running_whiten(
    advantages: PerToken,
    sequences: Sequences,
    state: Moments,
    *,
    decay: Annotated[Fraction, "what the past counts at each new step; at 1 nothing is forgotten"] = 0.99,
    epsilon: Epsilon = 1e-8,
    shift_mean: Annotated[bool, "whether the mean is subtracted"] = True,
) -> tuple[PerToken, Moments]:
    r"""Run ``whiten`` with the moments of all steps so far: a small step is not blown up to the size of a large one.

    .. math:: A'_t = \frac{A_t - \mu}{\sigma + \epsilon} \quad (\text{without } \mu \text{ unless the mean is shifted})

    ``[N]``, without unit. :math:`\mu` and the unbiased :math:`\sigma` are over the tokens of all committed steps and ranks and of this one;
    with ``decay`` a step counts that much less with each one that follows (1: never less). They are kept in the state of the objective.
    """
    moments = grown(state, advantages, sequences, decay)
    return normalised(advantages, moments, epsilon, shift_mean), moments
