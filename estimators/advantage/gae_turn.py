"""GAE by the turn: time passes when the policy hands over, not with each token it writes."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount
from .critic import Bootstrap, after_last


@advantage_estimator(
    scope="sequence",
    claims=("rewards-better", "scale-equivariant", "causal", "zero-at-perfect-values"),
    deviates={"referenced": "No paper or framework is known that has it."},
)
def gae_turn(
    token_rewards: PerToken,
    old_values: PerToken,
    turns: PerToken,
    sequences: Sequences,
    truncated: PerSequence | None = None,
    bootstrap_values: PerSequence | None = None,
    *,
    gamma: Annotated[Discount, "decay per turn"] = 1.0,
    lam: Annotated[Discount, "decay per turn"] = 1.0,
    bootstrap: Bootstrap = "never",
) -> Mapping[str, Tensor]:
    r"""Run ``gae`` with :math:`\gamma` and :math:`\lambda` spent only where a turn ends, so that a long turn discounts no more than a short one.

    .. math:: \delta_t = r_t + \gamma_t v_{t+1} - v_t, \qquad A_t = \delta_t + \gamma_t\lambda_t\, A_{t+1}, \qquad
        (\gamma_t, \lambda_t) = (\gamma, \lambda) \text{ at the end of a turn, else } (1, 1)

    ``[N]``, in units of the reward. A turn ends where the next sampled token has another number in ``turns``, and with the sequence. With
    a critic of 0 the return of a turn is its reward plus :math:`\gamma` times that of the next. Holes and the end as in ``gae``.
    """
    last = after_last("gae-turn", bootstrap, truncated, bootstrap_values)
    ends = (sequences.next(turns, -1) != turns) | sequences.is_last
    one = torch.ones((), dtype=accumulator(old_values), device=old_values.device)
    discount = torch.where(ends, gamma * one, one)
    surprise = token_rewards + discount.to(old_values.dtype) * sequences.next(old_values, last) - old_values
    advantages = sequences.reverse_scan(surprise, torch.where(ends, gamma * lam * one, one))
    return {"advantages": advantages, "returns": advantages + old_values}
