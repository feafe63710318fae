"""The score-function surrogate: a detached weight on the log-probability."""

import torch
from torch import Tensor


def score_loss(weight: Tensor, advantages: Tensor, log_prob: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return ``-sg(weight) A log_prob``: its gradient is ``-weight A``, and a weight that moves adds nothing to it.

    Tokens outside ``keep`` lose their log-probability before anything is multiplied, so they have the value and the gradient 0.
    """
    kept = log_prob if keep is None else torch.where(keep, log_prob, 0.0)
    return -(weight.detach() * advantages) * kept
