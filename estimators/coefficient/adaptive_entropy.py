"""A coefficient that wakes the entropy bonus only while the policy is too sure of itself."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import AliasChoices, Field
from torch import Tensor

from ...registry import Measured, coefficient
from ...registry.hyper import NonNegative, Positive

First = Annotated[NonNegative, Field(validation_alias=AliasChoices("entropy_coef", "init"), description="where the coefficient starts")]
Lowest = Annotated[NonNegative, Field(validation_alias=AliasChoices("coef_min", "min"), description="it never falls below this")]
Highest = Annotated[NonNegative, Field(validation_alias=AliasChoices("coef_max", "max"), description="it never rises above this")]


def _init(*, entropy_coef: float, target: float, delta: float, coef_min: float, coef_max: float) -> Mapping[str, Tensor]:
    return {"coef": torch.tensor(entropy_coef, dtype=torch.float64)}


@coefficient(
    paper="arXiv:2505.22312",
    init=_init,
    compat={"trl": "use_adaptive_entropy, with its own numbers as defaults here; entropy_coef is its init."},
)
def adaptive_entropy(
    state: Mapping[str, Tensor],
    measured: Measured,
    *,
    entropy_coef: First = 0.0,
    target: Annotated[Positive, "the entropy at or below which the bonus is paid [nats]"] = 0.2,
    delta: Annotated[Positive, "by how much the coefficient moves in a step"] = 0.005,
    coef_min: Lowest = 0.0,
    coef_max: Highest = 1.0,
) -> tuple[Tensor, Mapping[str, Tensor]]:
    r"""Step the coefficient up while the entropy is at most its target and down otherwise, and pay it only in the first case.

    .. math:: c' = \begin{cases} \min(c + \delta,\, max) & \text{if } H \le target \\ \max(c - \delta,\, min) & \text{otherwise} \end{cases}

    .. math:: coef = \begin{cases} c' & \text{if } H \le target \\ 0 & \text{otherwise} \end{cases}

    0-d float64. :math:`H` is the mean over tokens of the entropy in the last committed step, in nats like ``target``. Before the first
    step nothing was measured: the coefficient is 0 and :math:`c` stays. Unlike ``adaptive-kl`` it moves by steps and not by factors, so
    it can start from 0, and it has a dead side. Meant for the entropy term.
    """
    entropy = measured.token_mean.abs()  # the term that it multiplies is minus the entropy
    low, begun = entropy <= target, measured.sequences > 0
    up, down = (state["coef"] + delta).clamp(max=coef_max), (state["coef"] - delta).clamp(min=coef_min)
    coef = torch.where(begun, torch.where(low, up, down), state["coef"])
    return torch.where(begun & low, coef, 0.0), {"coef": coef}
