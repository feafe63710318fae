r"""What every KL estimator has in common: its bound, its cap, the policy that sampled, and the choice of its gradient.

With :math:`d = \ell - \ell^{ref}`, an estimate :math:`k(d)` of each token, :math:`\rho = e^{\ell - \ell^{anchor}}` and
:math:`w = \min(\rho, importance\_cap)`:

=================  ========  ================  ==============================================================================
gradient           value     by ``log_prob``   in expectation
=================  ========  ================  ==============================================================================
own                ``k``     ``k'``            of another divergence, that the estimator names; on policy only
straight-through   ``k``     ``d``             of KL(policy || reference), on policy only
unbiased           ``k``     ``w d``           of KL(policy || reference), whoever sampled, as long as the cap does not bind
importance-token   ``w k``   ``w (k + k')``    of the mean of ``k`` under the policy: of the KL for ``k1`` and ``k3`` alone
=================  ========  ================  ==============================================================================

A token that the policy cannot say (``-inf``) has the finite estimate of the bounded log-ratio, and no gradient: nothing moves it.
All of them hold the states that were visited: what a token does to the KL of later ones only ``importance-sequence`` sees.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from ...numerics import score_weight, straight_through
from ...registry import ColumnError

Gradient = Annotated[
    Literal["own", "straight-through", "unbiased", "importance-token"],
    "of the estimate itself, of the KL on policy, of the KL whoever sampled, or of the weighted estimate",
]
Anchor = Annotated[
    Literal["old", "rollout", "current"],
    Field(description="whose log-probabilities the importance ratio is taken against; current: 1, but with its gradient"),
]
Cap = Annotated[float | None, Field(gt=0, allow_inf_nan=False, description="the estimate is clamped to +- this [nats]; null: never")]
ImportanceCap = Annotated[
    float | None, Field(gt=0, allow_inf_nan=False, description="the importance ratio is at most this; its gradient goes on; null: no limit")
]


def log_importance(log_prob: Tensor, old_log_prob: Tensor | None, rollout_log_prob: Tensor | None, anchor: str, asked: str) -> Tensor:
    """Return ``log_prob`` less that of the anchor [nats]: 0 where the sampler did not score; ``asked`` is who needs the column."""
    movable = torch.where(log_prob.isinf(), 0.0, log_prob)
    same = movable - movable.detach()
    if anchor == "current":
        return same
    column = old_log_prob if anchor == "old" else rollout_log_prob
    if column is None:
        raise ColumnError(f"{asked} with anchor: {anchor} needs the column '{anchor}_log_prob', which the batch does not bring.")
    return torch.where(column.isnan(), same, log_prob - column)


def weighted(estimate: Tensor, log_weight: Tensor, alive: Tensor, importance_cap: float | None, cancels: Tensor | None = None) -> Tensor:
    """Return ``w k`` with the gradient ``w (k + k')``, and 0 for what is not ``alive`` because the bound of the log-ratio binds.

    ``cancels`` is the log-ratio of an estimate of which ``k + k'`` leaves just that: a difference that rounding would lose.
    """
    weight = score_weight(torch.where(alive, log_weight, log_weight.detach()), importance_cap)
    if cancels is None:
        return weight * estimate
    return straight_through(weight * estimate, weight.detach() * 0.5 * cancels.square())


def shaped(
    estimate: Tensor,
    log_ratio: Tensor,
    policies: tuple[Tensor, Tensor, Tensor | None, Tensor | None],
    gradient: str,
    anchor: str,
    cap: float | None,
    importance_cap: float | None,
    cancels: bool = False,
) -> Tensor:
    """Return the estimate, weighted and capped, with the gradient asked for.

    ``policies`` are the log-probabilities of the policy, the reference, the old policy and the sampler [nats]; ``log_ratio`` is the
    bounded one of the first two. The cap ends the gradients ``own`` and ``importance-token`` where it binds; the bound and the cap leave
    the others alone, which cannot overflow. ``cancels``: the estimate and its slope add up to the log-ratio. An anchor that is absent
    raises ``ColumnError``.
    """
    if gradient == "own":
        return estimate if cap is None else estimate.clamp(-cap, cap)
    log_prob, ref_log_prob, old_log_prob, rollout_log_prob = policies
    distance = log_prob - ref_log_prob
    distance = torch.where(distance.isinf(), log_ratio.detach(), distance)
    log_weight = None
    if gradient != "straight-through":
        log_weight = log_importance(log_prob, old_log_prob, rollout_log_prob, anchor, f"gradient: {gradient}")
    if gradient == "importance-token" and log_weight is not None:
        estimate = weighted(estimate, log_weight, log_ratio == log_prob - ref_log_prob, importance_cap, log_ratio if cancels else None)
    if cap is not None:
        estimate = estimate.clamp(-cap, cap)
    if gradient == "importance-token":
        return estimate
    half = 0.5 * distance.square()
    return straight_through(estimate, half if log_weight is None else score_weight(log_weight.detach(), importance_cap) * half)
