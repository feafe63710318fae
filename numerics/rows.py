"""Rows of logits, a block at a time: what is read off them, and the gradient that is written over them.

A chunk of logits is the largest tensor there is, so nothing else of its size is made: each block of rows is widened, used and dropped while
it still lies in the cache. ``[n, V]`` is a chunk, in whatever dtype the product of hidden states and weight has.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_FLOOR = -1e4
"""Of a log-probability where it meets its probability: below it that is 0 in float64 too, and 0 times infinity is avoided."""
_BLOCK = 1 << 17
"""Numbers in a block: two blocks of float32 fit the cache of one core."""


@dataclass(frozen=True)
class Softening:
    r"""From what the weight gives to logits: :math:`z = s\, c \tanh(x / c)`, without :math:`c` just :math:`s x`."""

    scale: float = 1.0
    softcap: float | None = None

    @property
    def plain(self) -> bool:
        """Whether it changes nothing."""
        return self.scale == 1 and self.softcap is None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits, in float32 at least; differentiable. What it does not change it returns as it is."""
        z = x if x.dtype == torch.float64 else x.float()
        if self.softcap is not None:
            z = self.softcap * torch.tanh(z / self.softcap)
        return z if self.scale == 1 else z * self.scale

    def back(self, slope: Tensor, x: Tensor) -> Tensor:
        """Turn, in place, the gradient of logits into that of what they came from."""
        if self.softcap is not None:
            bent = torch.tanh(x.to(slope.dtype) / self.softcap)
            slope.mul_(bent.square_().neg_().add_(1))
        return slope if self.scale == 1 else slope.mul_(self.scale)


def read_rows(x: Tensor, ids: Tensor, softening: Softening) -> tuple[Tensor, Tensor, Tensor]:
    r"""``[n, V], [n] -> [n], [n], [n]``: log-probability [nats] of each row's id, entropy [nats], :math:`\log \sum_v e^{z_v}`."""
    found = x.new_empty(3, x.shape[0], dtype=torch.promote_types(x.dtype, torch.float32))
    for rows in _blocks(x):
        z = softening(x[rows])
        top = z.amax(-1, keepdim=True)
        below = z - top
        p = below.exp()
        mass = p.sum(-1)
        spent = p.mul_(below.clamp_(min=_FLOOR)).sum(-1)
        log_mass = mass.log()
        found[2, rows] = whole = top.squeeze(-1) + log_mass
        found[1, rows] = log_mass - spent / mass
        found[0, rows] = z.gather(-1, ids[rows].unsqueeze(-1)).squeeze(-1) - whole
    log_prob, entropy, log_sum = found.unbind()
    return log_prob, entropy, log_sum


@dataclass(frozen=True)
class Slopes:
    """What a loss of a chunk is worth by its parts: ``[n]`` for log-probability and entropy, ``[n, V]`` for the logits themselves."""

    log_prob: Tensor | None
    entropy: Tensor | None
    logits: Tensor | None = None


def write_slopes(x: Tensor, ids: Tensor, read: tuple[Tensor, Tensor, Tensor], slopes: Slopes, softening: Softening) -> Tensor:
    r"""Write the gradient of ``x [n, V]`` over it, given that of what ``read_rows`` found.

    .. math:: \frac{\partial L}{\partial z_v} = g_\ell (1[v = y] - p_v) - g_H\, p_v (\log p_v + H) + g_{z_v}
    """
    for rows in _blocks(x):
        part = Slopes(*(None if g is None else g[rows] for g in (slopes.log_prob, slopes.entropy, slopes.logits)))
        slope = _slope_of(softening(x[rows]), ids[rows], read[1][rows], read[2][rows], part)
        x[rows] = softening.back(slope, x[rows])
    return x


def _slope_of(z: Tensor, ids: Tensor, entropy: Tensor, log_sum: Tensor, slopes: Slopes) -> Tensor:
    """Return the gradient of some rows of logits, as a tensor of its own."""
    if slopes.log_prob is None and slopes.entropy is None:
        return torch.zeros_like(z) if slopes.logits is None else slopes.logits.clone()
    log_p = z - log_sum.unsqueeze(-1)
    slope = log_p.exp()
    said = torch.zeros_like(entropy) if slopes.log_prob is None else slopes.log_prob
    if slopes.entropy is None:
        slope.mul_(said.neg().unsqueeze(-1))
    else:
        push = slopes.entropy.neg()
        slope.mul_(log_p.clamp_(min=_FLOOR).mul_(push.unsqueeze(-1)).add_((push * entropy - said).unsqueeze(-1)))
    slope.scatter_add_(-1, ids.unsqueeze(-1), said.unsqueeze(-1))
    return slope if slopes.logits is None else slope.add_(slopes.logits)


def _blocks(x: Tensor) -> Iterator[slice]:
    """Yield blocks of rows: as many as the cache holds, or on an accelerator as few kernels need; but never a large part of a large chunk."""
    n, words = x.shape
    cached = max(1, _BLOCK // max(words, 1))
    size = cached if n <= cached else max(1, n // 16)
    size = min(size, cached) if x.device.type == "cpu" else size
    for a in range(0, n, size):
        yield slice(a, min(a + size, n))
