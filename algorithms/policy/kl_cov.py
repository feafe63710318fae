"""KL-Cov: the few tokens that use up the entropy fastest are held back by a penalty."""

from typing import Annotated

import torch

from ...numerics import bounded_log_ratio
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, NonNegative
from .covariance import covariance, smallest


@policy_loss(
    paper="arXiv:2505.22617",
    scope="step",
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`kl_cov`: kl_cov_ratio, and ppo_kl_coef: 0.1 by its configuration; log_ratio_bound: null.",
        "skyrl": "`kl_cov`: kl_cov_frac is kl_cov_ratio (0.2 by default); log_ratio_bound: null; it does not divide the penalty.",
    },
)
def kl_cov(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    kl_cov_ratio: Annotated[Fraction, "share of the step's tokens, those of largest covariance, that are held back"] = 2e-4,
    ppo_kl_coef: Annotated[NonNegative, "weight of the size of the log-ratio at the tokens held back"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Add the size of the log-ratio to the tokens with the largest covariance; where ``clip-cov`` drops them, these still learn.

    .. math:: L_t = -r_t A_t + \beta\, |d_t|\, [t \in S], \qquad d_t = \ell_t - \ell^{old}_t

    ``[N]``, in units of the advantage. :math:`S` holds the :math:`\max(1, \lfloor \rho N \rfloor)` tokens with the largest
    :math:`(A_t - \bar A)(\ell_t - \bar\ell)`. Nothing is clipped. On policy :math:`|d_t|` has the gradient 0, so the first step is plain
    policy gradient. Means and :math:`N` are this rank's tokens of the step.
    """
    moved = log_prob - old_log_prob
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    held = smallest(-covariance(advantages, log_prob), max(int(kl_cov_ratio * log_prob.shape[0]), 1))
    loss = -log_ratio.exp() * advantages + ppo_kl_coef * torch.where(held, moved, 0.0).abs()
    return loss, {"ppo_kl": Mean(-log_ratio.detach()), "ppo_kl_abs": Mean(moved.detach().abs()), "kl_cov_frac": Mean(held)}
