"""GDPO: every component of the reward is measured in its own units before they are added up."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import NonNegative
from .components import Weights, shares
from .groups import Singleton
from .grpo import grpo
from .grpo_leave_one_out import grpo_leave_one_out
from .missing import among, present_moments

Baseline = Annotated[
    Literal["group", "others"], "whose mean and deviation a component is measured by: the whole group's, or the others' in it"
]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "unit-deviation"),
    aliases=("normalize_then_sum",),
    paper="arXiv:2601.05242",
    scope="step",
    compat={
        "verl": "use `gdpo: {singleton: reward}` with gdpo_reward_weights as `weights`.",
        "trl": "use `gdpo: {over: sequences, epsilon: 1e-4, step_epsilon: 1e-4}` for multi_objective_aggregation 'normalize_then_sum'.",
        "ms-swift": "use `gdpo: {over: sequences, epsilon: 1e-8, step_epsilon: 1e-8}` for scale_rewards 'gdpo'.",
        "nemo-rl": "use `gdpo: {over: sequences, baseline: others, step_epsilon: 0}`; its components are sorted by name.",
    },
)
def gdpo(
    component_rewards: PerSequence,
    sequences: Sequences,
    *,
    weights: Weights = None,
    over: Annotated[Literal["tokens", "sequences", "none"], "what the step's moments are taken over; none: no normalisation"] = "tokens",
    baseline: Baseline = "group",
    epsilon: Annotated[NonNegative, "added to a component's deviation in its group, which divides"] = 1e-6,
    step_epsilon: Annotated[NonNegative, "added to the step's variance whose root divides; over sequences: to the deviation"] = 1e-8,
    singleton: Singleton = "zero",
) -> PerToken:
    r"""Give each component the advantage of ``grpo``, add those up and normalise over the step: no component drowns because its scale is small.

    .. math:: x_i = \sum_k w_k\, \frac{s_{i,k} - \operatorname{mean}_g s_k}{\operatorname{std}_g s_k + \epsilon}, \qquad
        A_t = \frac{x_i - \mu_x}{\sqrt{\sigma^2_x + \epsilon_{step}}}

    ``[N]``, without unit. The moments are those of ``whiten`` over tokens; over ``sequences`` (TRL, NeMo) the deviation is that of the
    :math:`x_i` and :math:`\epsilon_{step}` is added to it. ``baseline: others`` is ``grpo-leave-one-out`` with ``others-std`` (NeMo). A
    component that is tied in its group gives 0 there, and so does one that does not apply (NaN), which is left out of the group. A sequence
    without a single reward gives 0 and is left out of the step. As many weights as components, else ``ColumnError``.
    """
    parts = component_rewards.unbind(1)
    present = ~component_rewards.isnan().all(1)

    def score(x: Tensor) -> Tensor:
        given = ~x.isnan()
        x, inside = torch.where(given, x, 0.0), among(given, sequences)
        if baseline == "group":
            found = grpo(x, inside, epsilon=epsilon, singleton=singleton)
        else:
            found = grpo_leave_one_out(x, inside, scale="others-std", epsilon=epsilon, singleton=singleton)
        return torch.where(given, found, 0.0)

    total = torch.stack([w * score(x) for w, x in zip(shares("gdpo", weights, len(parts)), parts, strict=True)]).sum(0)
    if over == "sequences":
        mean, variance = present_moments(total, present, sequences)
        white = safe_divide(total.to(mean.dtype) - mean, variance.sqrt() + step_epsilon)
        return sequences.spread(torch.where(present, white, 0.0).to(total.dtype))
    spread, there = sequences.spread(total), sequences.spread(present)
    if over == "none":
        return spread
    mean, variance = present_moments(spread, there, sequences)
    white = safe_divide(spread.to(mean.dtype) - mean, (variance + step_epsilon).sqrt())
    return torch.where(there, white, 0.0).to(total.dtype)
