"""The optimal token baseline: of all baselines per token the one with the least variance of the gradient."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import Singleton

HandleZeroTail = Annotated[bool, "whether a token alone in its column has no baseline; false: its own return is its baseline"]


@advantage_estimator(
    claims=("rewards-better", "scale-equivariant", "causal"),
    scope="group",
    compat={
        "verl": "`optimal_token_baseline`, with calculate_sum_pi_squared; singleton: reward.",
    },
)
def optimal_token_baseline(
    token_rewards: PerToken,
    old_log_prob: PerToken,
    sum_pi_squared: PerToken,
    positions: PerToken,
    sequences: Sequences,
    correction: PerToken | None = None,
    *,
    handle_zero_tail: HandleZeroTail = True,
    epsilon: Annotated[NonNegative, "added to the summed energy of a column, which divides"] = 1e-8,
    singleton: Singleton = "zero",
) -> Mapping[str, Tensor]:
    r"""Measure the return of each token against those of its group at the same *column*, weighted by the energy of their gradients so far.

    .. math:: e_t = (1 - 2\pi_t + \textstyle\sum_v \pi_v^2)\, w_t^2, \qquad E_t = \sum_{u \le t} e_u, \qquad
        b_t = \frac{\sum_{j \in g} R_{j,t} E_{j,t}}{\sum_{j \in g} E_{j,t} + \epsilon}, \qquad A_t = R_t - b_t

    ``[N]``, in units of the reward, and ``returns``. Columns are ``positions``; ``tir-optimal-token-baseline`` counts sampled tokens
    instead. :math:`w_t` is ``correction`` where the batch brings one. Where a token has its column to itself there is no baseline
    (``handle_zero_tail: false`` makes it its own, and the advantage about 0). A sequence with no other in its group that has a token
    gives 0, or with ``singleton: reward`` its return. A batch without ``group_ids`` raises ``ColumnError``.
    """
    return against_column(
        token_rewards, old_log_prob, sum_pi_squared, positions, sequences, correction, handle_zero_tail, epsilon, singleton
    )


def against_column(
    token_rewards: Tensor,
    old_log_prob: Tensor,
    sum_pi_squared: Tensor,
    columns: Tensor,
    sequences: Sequences,
    correction: Tensor | None,
    handle_zero_tail: bool,
    epsilon: float,
    singleton: Singleton,
) -> Mapping[str, Tensor]:
    """Return advantages and returns with the baseline of each (group, column), over all ranks."""
    returns = sequences.reverse_scan(token_rewards)
    energy = 1 - 2 * old_log_prob.exp() + sum_pi_squared
    energy = sequences.cumsum(energy if correction is None else energy * correction.square())
    group = sequences.spread(sequences.group_spread(torch.arange(sequences.group_size().shape[0], device=columns.device)))
    cells = Sequences.of(torch.ones_like(columns), columns.shape[0], group * 2**32 + columns.long()).across(sequences.ranks)
    exact = returns.to(sequences.group_size().dtype)
    top, bottom = cells.group_sum(exact * energy), cells.group_sum(energy.to(exact.dtype))
    baseline = cells.group_spread(safe_divide(top, bottom + epsilon))
    if handle_zero_tail:
        baseline = torch.where(cells.group_spread(cells.group_size()) > 1, baseline, 0.0)
    live = sequences.group_sum((sequences.lengths > 0).to(exact.dtype))
    alone = sequences.spread(sequences.group_spread(live)) <= 1
    baseline = torch.where(alone, exact if singleton == "zero" else 0.0, baseline)
    return {"advantages": (exact - baseline).to(returns.dtype), "returns": returns}
