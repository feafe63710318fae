"""How many ways there are to choose."""

import torch
from torch import Tensor


def log_choose(n: Tensor, k: int) -> Tensor:
    r"""Return :math:`\ln \binom{n}{k}` of whole numbers, ``-inf`` where :math:`n < k` or :math:`k < 0`; a ratio of two never overflows."""
    legal = (n >= k) & (k >= 0)
    safe = torch.where(legal, n, float(max(k, 0)))
    ways = torch.lgamma(safe + 1) - torch.lgamma(safe - max(k, 0) + 1) - torch.lgamma(torch.full_like(safe, max(k, 0) + 1.0))
    return torch.where(legal, ways, float("-inf"))
