"""Stop properly: an answer that the length limit cut is worth less, or a fixed amount."""

from typing import Annotated

import torch
from pydantic import Field

from ...registry import PerSequence, reward_term

PenaltyCoef = Annotated[
    float,
    Field(
        le=1, allow_inf_nan=False, description="from 0 to 1: what the reward is multiplied by; below 0: the reward that stands in its place"
    ),
]


@reward_term(
    scope="token",
    compat={
        "openrlhf": "use `stop-properly`; both forms of its coefficient are the same.",
        "nemo-rl": "use `stop-properly` with a coefficient from 0 to 1; it has no negative one.",
    },
)
def stop_properly(rewards: PerSequence, truncated: PerSequence, *, penalty_coef: PenaltyCoef = 0.0) -> PerSequence:
    r"""Shrink or replace the reward of truncated sequences; ``overlong`` takes something away before the limit, this only at it.

    .. math:: s'_i = \begin{cases} c\, s_i & 0 \le c \le 1 \\ c & c < 0 \end{cases} \quad \text{where truncated, else } s_i

    ``[S]``, in units of the reward. Shrinking makes a *negative* reward milder: where rewards may be negative take a negative
    coefficient. The rule is ProRL's.
    """
    cut = penalty_coef * rewards if penalty_coef >= 0 else torch.full_like(rewards, penalty_coef)
    return torch.where(truncated > 0, cut, rewards)
