"""V-trace: what the critic learns from a policy that has moved since, with every ratio cut off at a bound."""

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import bounded_log_ratio
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount, LogRatioBound, Positive
from .critic import Bootstrap, after_last


@advantage_estimator(
    paper="arXiv:1802.01561", scope="sequence", claims=("rewards-better", "scale-equivariant", "causal", "zero-at-perfect-values")
)
def vtrace(
    token_rewards: PerToken,
    old_values: PerToken,
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    truncated: PerSequence | None = None,
    bootstrap_values: PerSequence | None = None,
    *,
    gamma: Discount = 1.0,
    lam: Discount = 1.0,
    clip_rho_threshold: Annotated[Positive, "the largest ratio that weighs an error in the critic's targets"] = 1.0,
    clip_pg_rho_threshold: Annotated[Positive, "the largest ratio that weighs an advantage"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
    bootstrap: Bootstrap = "never",
) -> Mapping[str, Tensor]:
    r"""Run ``gae`` off-policy: errors count as much as the policy would still choose their token, and traces fade where it would not.

    .. math:: e_t = \min(\rho_t, \bar\rho)\, \delta_t + \gamma\lambda \min(\rho_t, 1)\, e_{t+1}, \qquad R_t = v_t + e_t, \qquad
        A_t = \min(\rho_t, \bar\rho_{pg}) \bigl(r_t + \gamma\, (v_{t+1} + \lambda e_{t+1}) - v_t\bigr)

    ``[N]``, in units of the reward; :math:`\delta_t` is that of ``gae`` and :math:`\rho_t = e^{\ell^{old}_t - \ell^{rollout}_t}`, which is 1
    where the sampler did not score a token (NaN). The advantage carries a ratio already: pair it with ``reinforce`` rather than with a
    correction of the same mismatch. Holes and the end as in ``gae``. Equation 1 of the paper.
    """
    log_ratio = bounded_log_ratio(old_log_prob, torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob), log_ratio_bound)
    rho = log_ratio.exp()
    after = sequences.next(old_values, after_last("vtrace", bootstrap, truncated, bootstrap_values))
    surprise = token_rewards + gamma * after - old_values
    error = sequences.reverse_scan(rho.clamp(max=clip_rho_threshold) * surprise, gamma * lam * rho.clamp(max=1.0))
    ahead = surprise + gamma * lam * sequences.next(error)
    return {"advantages": rho.clamp(max=clip_pg_rho_threshold) * ahead, "returns": old_values + error}
