"""Values as distributions over ``K`` bins: what a return becomes as a target, and what a distribution is worth as a value."""

import math

import torch
from torch import Tensor

from ..registry import ColumnError
from .vocabulary import log_softmax, through_softmax, widened

_STEPS = 8
"""How many numbers must lie between two bins, for the shares of a target to mean something."""


def bin_points(value_logits: Tensor, low: float, high: float) -> Tensor:
    """``[n, K] -> [K]``: evenly spaced points, one on either end of the support: the values of ``two_hot``.

    Fewer than two bins raise ``ColumnError``, and so do more than the numbers between ``low`` and ``high`` can be told apart as.
    """
    count, dtype = value_logits.shape[-1], _wide(value_logits)
    if count < 2:
        raise ColumnError(f"value_logits has the shape {list(value_logits.shape)}; a critic of bins needs at least two of them.")
    width, step = (high - low) / (count - 1), torch.finfo(dtype).eps * max(abs(low), abs(high))
    if width < _STEPS * step:
        raise ColumnError(
            f"value_logits has {count} bins between {low:g} and {high:g}, {width:.3g} apart; there {dtype} moves in steps of {step:.3g}. "
            f"Use fewer bins or a wider support."
        )
    return torch.linspace(low, high, count, dtype=dtype, device=value_logits.device)


def bin_centres(value_logits: Tensor, low: float, high: float) -> Tensor:
    """``[n, K] -> [K]``: the centres of equally wide bins that fill the support: the values of ``hl_gauss``."""
    half = (high - low) / (2 * value_logits.shape[-1])
    return bin_points(value_logits, low + half, high - half)


def decoded(value_logits: Tensor, points: Tensor) -> Tensor:
    r"""``[n, K], [K] -> [n]``: the value :math:`\sum_k p_k c_k` that a critic of bins stands for, in the unit of ``points``."""
    return widened(value_logits).softmax(-1) @ points


def two_hot(values: Tensor, points: Tensor) -> Tensor:
    """``[n], [K] -> [n, K]``: each value shared by the two points around it, so that their mean is the value; outside, the nearest point."""
    inside = values.to(points.dtype).clamp(points[0], points[-1]).unsqueeze(-1)
    width = (points[-1] - points[0]) / (points.shape[0] - 1)
    return (1 - (inside - points).abs() / width).clamp(min=0)


def hl_gauss(values: Tensor, centres: Tensor, sigma_ratio: float) -> Tensor:
    r"""``[n], [K] -> [n, K]``: what a normal distribution around each value puts into each bin, given that it falls into one.

    Its deviation is ``sigma_ratio`` bins. A value outside the support is moved to its edge, far from which nothing would be left.
    """
    width = (centres[-1] - centres[0]) / (centres.shape[0] - 1)
    edges = torch.cat([centres - width / 2, centres[-1:] + width / 2])
    inside = values.to(centres.dtype).clamp(edges[0], edges[-1]).unsqueeze(-1)
    below = torch.erf((edges - inside) / (math.sqrt(2) * sigma_ratio * width))
    return below.diff(dim=-1) / (below[..., -1:] - below[..., :1])


def cross_entropy(value_logits: Tensor, target: Tensor) -> Tensor:
    r"""``[n, K], [n, K] -> [n]``: :math:`-\sum_k t_k \log p_k` [nats]; a bin that is no target may have the logit ``-inf``."""
    log_p = log_softmax(value_logits)
    value = -torch.where(target > 0, target * log_p, 0.0).sum(-1)
    return through_softmax(value_logits, value, log_p.exp_(), -target)


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32
