"""A coefficient that stays what it is."""

from typing import Annotated

import torch
from torch import Tensor

from ...registry import coefficient


@coefficient(
    compat={
        "verl": "kl_ctrl of type fixed, entropy_coeff, kl_loss_coef.",
        "trl": "beta, entropy_coef.",
        "roll": "init_kl_coef without adaptation.",
    }
)
def constant(*, value: Annotated[float, "what the term is multiplied by"]) -> Tensor:
    """Return ``value``, whatever happens; a bare number in a recipe means this. 0-d float64."""
    return torch.tensor(value, dtype=torch.float64)
