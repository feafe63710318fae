"""A*-PO's advantage: an answer is measured against the value of the best policy that stays near the reference."""

from typing import Annotated

import torch

from ...numerics import accumulator
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Positive


@advantage_estimator(
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
    given = ~frozen_rewards.isnan()
    scaled = torch.where(given, frozen_rewards.to(accumulator(rewards)) / beta1, float("-inf"))
    top = torch.where(given.any(1), scaled.amax(1), 0.0)
    raised = torch.where(given, (scaled - top[:, None]).exp(), 0.0).sum(1)  # the best answer alone gives 1
    count = given.sum(1).clamp(min=1)
    value = beta1 * (top + torch.where(given.any(1), raised / count, 1.0).log())
    return (rewards - value).to(rewards.dtype)
