"""The optimal token baseline for answers in turns: what tools wrote does not shift the columns."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from ...batch import Sequences
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import Singleton
from .optimal_token_baseline import against_column


@advantage_estimator(
    claims=("rewards-better", "scale-equivariant", "causal"),
    aliases=("multi_turn_optimal_token_baseline",),
    scope="group",
    compat={
        "verl": "`tir_optimal_token_baseline`, with calculate_sum_pi_squared.",
    },
)
def tir_optimal_token_baseline(
    token_rewards: PerToken,
    old_log_prob: PerToken,
    sum_pi_squared: PerToken,
    sequences: Sequences,
    correction: PerToken | None = None,
    *,
    handle_zero_tail: Annotated[bool, "whether a token alone at its place has no baseline; false: its own return is its baseline"] = True,
    epsilon: Annotated[NonNegative, "added to the summed energy of a place, which divides"] = 1e-8,
    singleton: Singleton = "zero",
) -> Mapping[str, Tensor]:
    r"""Run ``optimal-token-baseline`` over the place of a token among the *sampled* ones of its sequence instead of over its column.

    .. math:: b_t = \frac{\sum_{j \in g} R_{j,t} E_{j,t}}{\sum_{j \in g} E_{j,t} + \epsilon}, \qquad A_t = R_t - b_t

    ``[N]``, in units of the reward, and ``returns``; :math:`t` counts sampled tokens from 0, so the length of a tool's output moves nothing.
    All else as there.
    """
    return against_column(
        token_rewards, old_log_prob, sum_pi_squared, sequences.places, sequences, correction, handle_zero_tail, epsilon, singleton
    )
