"""GDPO: every component of the reward is measured in its own units before they are added up."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import ColumnError, PerSequence, PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .groups import Singleton
from .grpo import grpo
from .grpo_leave_one_out import grpo_leave_one_out
from .whiten import whiten

Weight = Annotated[float, Field(allow_inf_nan=False)]
Weights = Annotated[tuple[Weight, ...] | None, Field(description="one weight per component; null: all 1")]


@advantage_estimator(paper="arXiv:2601.05242", scope="step")
def gdpo(
    component_rewards: PerSequence,
    sequences: Sequences,
    *,
    weights: Weights = None,
    over: Literal["tokens", "sequences", "none"] = "tokens",
    baseline: Literal["group", "others"] = "group",
    epsilon: NonNegative = 1e-6,
    step_epsilon: NonNegative = 1e-8,
    singleton: Singleton = "zero",
) -> PerToken:
    r"""Give each component the advantage of ``grpo``, add those up and normalise over the step: no component drowns because its scale is small.

    .. math:: x_i = \sum_k w_k\, \frac{s_{i,k} - \operatorname{mean}_g s_k}{\operatorname{std}_g s_k + \epsilon}, \qquad
        A_t = \frac{x_i - \mu_x}{\sqrt{\sigma^2_x + \epsilon_{step}}}

    ``[N]``, without unit. The moments are those of ``whiten`` over tokens; over ``sequences`` (TRL, NeMo) the deviation is that of the
    :math:`x_i` and :math:`\epsilon_{step}` is added to it. ``baseline: others`` is ``grpo-leave-one-out`` with ``others-std`` (NeMo). A
    component that is tied in its group gives 0 there. As many weights as components, else ``ColumnError``.
    """
    parts = component_rewards.unbind(1)
    shares = (1.0,) * len(parts) if weights is None else weights
    if len(shares) != len(parts):
        raise ColumnError(f"gdpo has {len(shares)} weights, but 'component_rewards' has {len(parts)} components.")
    scores = [
        grpo(x, sequences, epsilon=epsilon, singleton=singleton)
        if baseline == "group"
        else grpo_leave_one_out(x, sequences, scale="others-std", epsilon=epsilon, singleton=singleton)
        for x in parts
    ]
    total = torch.stack([w * x for w, x in zip(shares, scores, strict=True)]).sum(0)
    if over == "sequences":
        _, mean, variance = sequences.moments(total)
        total = safe_divide(total.to(mean.dtype) - mean, variance.sqrt() + step_epsilon).to(total.dtype)
    spread = sequences.spread(total)
    return whiten(spread, sequences, epsilon=step_epsilon) if over == "tokens" else spread
