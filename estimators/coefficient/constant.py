"""A coefficient that stays what it is."""

from typing import Annotated

import torch
from torch import Tensor

from ...registry import coefficient
from ...registry.hyper import Real


@coefficient(
    compat={
        "verl": "kl_ctrl of type fixed, entropy_coeff, kl_loss_coef.",
        "trl": "beta, entropy_coef.",
        "roll": "init_kl_coef without adaptation.",
    }
)
def constant(*, value: Annotated[Real, "what the term is multiplied by"]) -> Tensor:
    r"""Return ``value``, whatever happens; a bare number in a recipe means this.

    .. math:: c_k = c

    0-d float64, at every step :math:`k`.
    """
    return torch.tensor(value, dtype=torch.float64)
