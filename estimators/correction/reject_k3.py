"""Rejection by k3: drop where a low-noise estimate of KL(sampler || trainer) is too large."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import bounded
from ...registry import PerToken, correction
from ...registry.hyper import LogRatioBound, Positive
from .levels import Aggregation, Keep, distance, gathered, within


@correction(
    claims=("neutral-at-agreement",),
    scope="sequence",
    compat={
        "verl": "`token_k3`, `seq_sum_k3`, `seq_mean_k3`, `seq_max_k3`: the rest of the name is `agg`, the threshold is `upper`.",
        "areal": "`metric: kl_k3, action: mask` is `inverse: true`, with `agg: token` for its level `token`; `denominator: original`.",
    },
)
def reject_k3(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    agg: Aggregation = "mean",
    upper: Annotated[Positive, "the largest estimate of the KL that stays [nats]"] = 0.01,
    inverse: Annotated[bool, "whether the log-ratio is taken with the other sign, which punishes a less likely trainer more"] = False,
    log_ratio_bound: LogRatioBound = 20.0,
) -> Keep:
    r"""Keep where the estimated KL of the sampler from the trainer is small; ``reject-k2`` treats both directions alike.

    .. math:: \text{kept where } \operatorname{agg}(e^d - 1 - d) \le upper, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, ``upper`` in nats. The tokens were drawn from the sampler, so their mean estimates KL(sampler || trainer) without bias, and
    none is negative. ``inverse`` takes :math:`-d` for :math:`d`, which punishes a less likely trainer more. Nothing is weighed. Rejected
    tokens leave by selection, so ``denominator`` decides whether the others count for more. A token that the sampler did not score has
    :math:`d_t = 0`; past ``log_ratio_bound`` the estimate no longer grows, so an ``upper`` beyond :math:`e^{log\_ratio\_bound}` rejects nothing; an empty sequence stays as it is. ``segment`` without ``turns`` raises ``ColumnError``.
    """
    moved = bounded(distance(old_log_prob, rollout_log_prob), log_ratio_bound)
    moved = -moved if inverse else moved
    return None, within(gathered(torch.expm1(moved) - moved, agg, sequences, turns), None, upper)
