"""What the estimators with a critic share: the value of what follows the last token."""

from typing import Annotated, Literal

import torch
from torch import Tensor

from ...registry import ColumnError

Bootstrap = Annotated[Literal["never", "truncated"], "which sequences have a value after their last token: none, or those that were cut"]


def after_last(who: str, bootstrap: Bootstrap, truncated: Tensor | None, bootstrap_values: Tensor | None) -> Tensor | float:
    """Return 0, or with ``truncated`` the critic's word for sequences that the length limit cut; columns that lack raise ``ColumnError``."""
    if bootstrap == "never":
        return 0.0
    if truncated is None or bootstrap_values is None:
        missing = [f"'{n}'" for n, x in (("truncated", truncated), ("bootstrap_values", bootstrap_values)) if x is None]
        raise ColumnError(f"{who} with bootstrap='truncated' also needs {' and '.join(missing)}, which the batch does not bring.")
    return torch.where(truncated > 0, bootstrap_values, 0.0)
