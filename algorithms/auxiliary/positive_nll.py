"""VAPO's imitation of what went right: answers that were rewarded are demonstrations."""

from typing import Annotated

import torch
from pydantic import Field

from ...registry import Mean, PerToken, Report, auxiliary_loss

Reward = Annotated[float, Field(allow_inf_nan=False, description="a reward above this is right")]


@auxiliary_loss(
    paper="arXiv:2504.05118",
    scope="token",
    claims=("non-negative",),
    compat={
        "nemo-rl": "positive_example_nll_weight is coef, but its mean is over the right answers of each micro-batch.",
    },
)
def positive_nll(log_prob: PerToken, rewards: PerToken, *, threshold: Reward = 0.0) -> tuple[PerToken, Report]:
    r"""Return the loss of ``sft`` for tokens of sequences whose reward is above a threshold, and 0 for all others.

    .. math:: L_t = -\ell_t \cdot 1[s_i > c]

    ``[N]``, in nats; :math:`s_i` is the reward as the batch brought it, in the unit of ``threshold``. The aggregation weighs all tokens, so
    that few right answers give a small term; the paper divides by the tokens of right answers alone (``positive_nll``, reported), NeMo
    even within each micro-batch.
    """
    right = rewards > threshold
    loss = torch.where(right, -log_prob, 0.0)
    return loss, {"positive_frac": Mean(right), "positive_nll": Mean(-log_prob.detach(), right)}
