"""GRPO on rewards that come from several functions, some of which do not apply to every sequence."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon
from .components import Weights, shares
from .groups import Singleton, centred
from .missing import among, present_moments

Scale = Annotated[
    Literal["group-std", "batch-std", "none"], "what divides: the deviation of the group, that of all rewards of the step, or nothing"
]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "group-centred", "unit-deviation"),
    aliases=("sum_then_normalize",),
    paper="arXiv:2402.03300",
    scope="group",
    deviates={"scope@scale=batch-std": "The deviation of the whole step divides, so that a group does not stand alone."},
    compat={
        "trl": "use `grpo-components: {epsilon: 1e-4}`; scale_rewards 'batch' is `scale: batch-std`, 'none' is `scale: none`; its RLOO is "
        "`baseline: others` with `scale: none`.",
    },
)
def grpo_components(
    component_rewards: PerSequence,
    sequences: Sequences,
    *,
    weights: Weights = None,
    baseline: Annotated[Literal["group", "others"], "whose mean is subtracted: the whole group's, or that of the others in it"] = "group",
    scale: Scale = "group-std",
    epsilon: Epsilon = 1e-6,
    singleton: Singleton = "zero",
) -> PerSequence:
    r"""Add up the components that apply and run ``grpo`` (or ``rloo``) on the sums; ``gdpo`` measures each component in its own unit first.

    .. math:: s_i = \sum_{k:\, s_{i,k} \ne \mathrm{NaN}} w_k\, s_{i,k}, \qquad A_i = \frac{s_i - \operatorname{mean}_g s}{\operatorname{std} + \epsilon}

    ``[S]``, without unit (``scale: none``: in units of the reward). NaN means that a reward function does not apply: it adds nothing, and a
    sequence without a single reward gives 0 and is no member of its group or of the step. ``baseline: others`` leaves the sequence itself
    out of the mean. Ties and singletons as in ``grpo``. As many weights as components, else ``ColumnError``.
    """
    weight = component_rewards.new_tensor(shares("grpo-components", weights, component_rewards.shape[1]))
    given = ~component_rewards.isnan()
    present = given.any(1)
    total = torch.where(given, component_rewards * weight, 0.0).sum(1)
    inside = among(present, sequences)
    apart, deviation = centred(total, inside, singleton)
    if baseline == "others":
        size = inside.group_spread(inside.group_size()).to(apart.dtype)
        apart = torch.where(size > 1, apart * size / (size - 1).clamp(min=1), apart)
    if scale == "batch-std":
        deviation = present_moments(total, present, sequences)[1].sqrt()
    if scale != "none":
        apart = safe_divide(apart, deviation + epsilon)
    return torch.where(present, apart, 0.0).to(component_rewards.dtype)
