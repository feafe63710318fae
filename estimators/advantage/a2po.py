"""A*-PO's advantage: an answer is measured against the value of the best policy that stays near the reference."""

from typing import Annotated

import torch

from ...numerics import accumulator
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Positive


@advantage_estimator(
    claims=(
        "rewards-better",
        "independent-baseline",
    ),
    aliases=("a-star-po",),
    paper="arXiv:2505.20686",
    scope="sequence",
    compat={"trl": "use `a2po`; its V* is taken once per prompt from frozen samples, which are `frozen_rewards` here."},
)
def a2po(
    rewards: PerSequence,
    frozen_rewards: PerSequence,
    *,
    beta1: Annotated[Positive, "temperature of the soft maximum over the reference's rewards [reward]"] = 0.5,
) -> PerSequence:
    r"""Measure each reward against a soft maximum over what the frozen reference earned on its prompt, where ``grpo`` takes the policy's mean.

    .. math:: A_i = s_i - V^*_i, \qquad V^*_i = \beta_1 \log \frac{1}{K} \sum_{k=1}^{K} e^{r_{i,k} / \beta_1}

    ``[S]``, in units of the reward, like ``beta1``. ``frozen_rewards`` is ``[S, K]``, with NaN where a prompt has fewer answers; with none at
    all :math:`V^*` is 0. A small :math:`\beta_1` asks for the best answer, a large one for the mean. The policy loss of the same name takes
    :math:`V^*` from the group instead.
    """
    nothing = frozen_rewards.new_full((frozen_rewards.shape[0], 1), float("nan"))  # of no columns there would be no maximum
    answers = torch.cat([frozen_rewards, nothing], 1).to(accumulator(rewards))
    given = ~answers.isnan()
    top = torch.where(given.any(1), torch.where(given, answers, float("-inf")).amax(1), 0.0)
    below = torch.where(given, answers - top[:, None], 0.0) / beta1
    raised = below.expm1().sum(1) / given.sum(1).clamp(min=1)  # expm1 and log1p keep what a large beta makes small
    return (rewards - (top + beta1 * raised.log1p())).to(rewards.dtype)
