"""How far the sampler and the trainer are apart: the quantities that tell whether a correction is needed, and of which kind."""

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from ..registry import Max, Mean, Min
from .ratio import bounded
from .sums import safe_divide


class Ladder(Protocol):
    """What is needed of ``Sequences``."""

    def sum(self, x: Tensor) -> Tensor:
        """``[N] -> [S]``."""


def mismatch(old_log_prob: Tensor, rollout_log_prob: Tensor, sequences: Ladder, bound: float = 20.0) -> Mapping[str, Mean | Max | Min]:
    r"""Return the distances of trainer and sampler as extensive quantities, under verl's names; no gradient.

    With :math:`d = \ell^{old} - \ell^{roll}` [nats], :math:`w = e^d`, and the perplexity :math:`e^{-\bar\ell}` of each sequence:

    - over tokens: ``kl`` (the mean of :math:`-d`), ``k3_kl``, ``chi2_token`` (of :math:`w^2 - 1`), and ``rollout_is_mean`` (of
      :math:`w`);
    - over sequences: ``training_ppl``, ``rollout_ppl``, their logarithms ``..._log_ppl``, ``log_ppl_diff`` (its mean, size and extremes),
      ``ppl_ratio``, and ``chi2_seq`` (of the squared product of the ratios, less 1).

    A token that the sampler did not score (NaN) and a sequence without a scored token count nowhere. Log-ratios are clamped to ``+- bound``
    before they become weights, and everything else only where its exponential would overflow: large numbers stay large, and finite.
    """
    old, rollout = old_log_prob.detach(), rollout_log_prob.detach()
    scored = ~rollout.isnan()
    d = torch.where(scored, old - rollout, 0.0)
    near, finite = bounded(d, bound), bounded(d, None)
    w = near.exp()
    number = sequences.sum(scored).to(d.dtype)
    live = number > 0
    nll, rollout_nll = (-safe_divide(sequences.sum(torch.where(scored, x, 0.0)), number) for x in (old, rollout))
    apart = safe_divide(sequences.sum(-d), number)
    return {
        "kl": Mean(-d, scored),
        "k3_kl": Mean(torch.expm1(finite) - d, scored),
        "chi2_token": Mean(torch.expm1(2 * near), scored),
        "rollout_is_mean": Mean(w, scored),
        "training_ppl": Mean(bounded(nll, None).exp(), live),
        "training_log_ppl": Mean(nll, live),
        "rollout_ppl": Mean(bounded(rollout_nll, None).exp(), live),
        "rollout_log_ppl": Mean(rollout_nll, live),
        "log_ppl_diff": Mean(apart, live),
        "log_ppl_abs_diff": Mean(apart.abs(), live),
        "log_ppl_diff_max": Max(apart, live),
        "log_ppl_diff_min": Min(apart, live),
        "ppl_ratio": Mean(bounded(apart, None).exp(), live),
        "chi2_seq": Mean(torch.expm1(2 * bounded(sequences.sum(d), bound)), live),
    }
