"""A coefficient that holds the KL near a target, as a thermostat does."""

from collections.abc import Mapping
from typing import Annotated

import torch
from pydantic import AliasChoices, Field
from torch import Tensor

from ...registry import Measured, coefficient
from ...registry.hyper import NonNegative, Positive

FirstCoef = Annotated[NonNegative, Field(validation_alias=AliasChoices("kl_coef", "init"), description="the coefficient of the first step")]


def _init(*, kl_coef: float, target: float, horizon: float) -> Mapping[str, Tensor]:
    return {"coef": torch.tensor(kl_coef, dtype=torch.float64)}


@coefficient(
    paper="arXiv:1909.08593",
    init=_init,
    compat={
        "verl": "kl_ctrl of type adaptive: kl_coef, target (its target_kl) and horizon.",
        "skyrl": "the adaptive controller; it starts from kl_loss_coef.",
        "roll": "the adaptive controller; kl_coef is its init_kl_coef.",
        "openrlhf": "the adaptive controller; kl_coef is its init_coef.",
    },
)
def adaptive_kl(
    state: Mapping[str, Tensor],
    measured: Measured,
    *,
    kl_coef: FirstCoef,
    target: Annotated[Positive, "the KL that is aimed at [nats]"],
    horizon: Annotated[Positive, "how slowly it reacts, counted in sequences"],
) -> tuple[Tensor, Mapping[str, Tensor]]:
    r"""Raise the coefficient while the KL is above its target and lower it below: unlike ``linear`` it follows what was measured.

    .. math:: c' = c \cdot \Bigl(1 + \operatorname{clip}\bigl(\tfrac{KL}{target} - 1,\, -0.2,\, 0.2\bigr) \cdot \tfrac{n}{horizon}\Bigr)

    0-d float64. :math:`KL` is the mean over sequences of their token means in the last committed step, in nats like ``target``, and
    :math:`n` the number of its sequences, in which ``horizon`` is counted too. Before the first step :math:`n = 0`, which leaves the
    coefficient as it is. The paper's proportional controller, with :math:`n / horizon` for its gain.
    """
    error = (measured.sequence_mean / target - 1).clamp(-0.2, 0.2)
    coef = state["coef"] * (1 + error * measured.sequences / horizon)
    return coef, {"coef": coef}
