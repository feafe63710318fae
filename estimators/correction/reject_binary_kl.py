"""Rejection by the KL between two coins: this token or another, under the sampler and under the trainer."""

from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import clamped_binary_kl
from ...registry import PerToken, correction
from ...registry.hyper import Positive
from .levels import Aggregation, Keep, gathered, within


@correction(
    claims=("neutral-at-agreement",),
    scope="sequence",
    compat={
        "openrlhf": "gating `binary_kl`: the upper threshold is `upper`, level `token` is `agg: token`, `seq` is `mean`; then "
        "`truncated-is` with `cap: null`, and `denominator: original`.",
    },
)
def reject_binary_kl(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    agg: Aggregation = "mean",
    upper: Annotated[Positive, "the largest KL that stays [nats]"] = 0.02,
    epsilon: Annotated[float, Field(gt=0, lt=0.5), "how far both probabilities are kept from 0 and 1"] = 1e-6,
) -> Keep:
    r"""Keep where KL(sampler || trainer) of "this token or another" is small: between a ratio and a difference of probabilities.

    .. math:: \text{kept where } \operatorname{agg}\Bigl(p \ln\frac{p}{q} + (1 - p) \ln\frac{1 - p}{1 - q}\Bigr) \le upper, \qquad
        p = e^{\ell^{roll}},\ q = e^{\ell^{old}}

    ``[N]``, ``upper`` in nats. It is a lower bound of the KL over the whole vocabulary and needs no more than the sampled token. Both
    probabilities are kept ``epsilon`` away from 0 and 1. Nothing is weighed. Rejected tokens leave by selection, so ``denominator``
    decides whether the others count for more. A token that the sampler did not score has the KL 0; an empty sequence stays as it is.
    ``segment`` without ``turns`` raises ``ColumnError``.
    """
    sampler = torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob)
    kl = clamped_binary_kl(sampler, old_log_prob, epsilon)
    return None, within(gathered(kl, agg, sequences, turns), None, upper)
