"""Rows of logits, a block at a time: what is read off them, and the gradient that is written over them.

A chunk of logits is the largest tensor there is, so nothing else of its size is made: each block of rows is widened, used and dropped while
it still lies in the cache. ``[n, V]`` is a chunk, in whatever dtype the product of hidden states and weight has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

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


@dataclass(frozen=True)
class Read:
    r"""What was read off a chunk, each ``[n]``: log-probability of the ids and entropy [nats], and :math:`\log \sum_v e^{z_v}`."""

    log_prob: Tensor
    entropy: Tensor
    log_sum: Tensor


def read_rows(x: Tensor, ids: Tensor, softening: Softening, *, compiled: bool = False) -> Read:
    """``[n, V], [n]``: read log-probability and entropy off a chunk; ``compiled``: by one kernel instead of block by block."""
    if compiled:
        return Read(*_fused(_read, x, ids, softening))
    found = x.new_empty(3, x.shape[0], dtype=torch.promote_types(x.dtype, torch.float32))
    for rows in _blocks(x):
        for out, part in zip(found, _read(x[rows], ids[rows], softening), strict=True):
            out[rows] = part
    return Read(*found.unbind())


def _read(x: Tensor, ids: Tensor, softening: Softening) -> tuple[Tensor, Tensor, Tensor]:
    z = softening(x)
    top = z.amax(-1, keepdim=True)
    below = z - top
    p = below.exp()
    mass = p.sum(-1)
    spent = p.mul_(below.clamp_(min=_FLOOR)).sum(-1)
    log_mass = mass.log()
    log_sum = top.squeeze(-1) + log_mass
    return z.gather(-1, ids.unsqueeze(-1)).squeeze(-1) - log_sum, log_mass - spent / mass, log_sum


@dataclass(frozen=True)
class Slopes:
    """What a loss of a chunk is worth by its parts: ``[n]`` for log-probability and entropy, ``[n, V]`` for the logits themselves."""

    log_prob: Tensor | None
    entropy: Tensor | None
    logits: Tensor | None = None


def write_slopes(x: Tensor, ids: Tensor, read: Read, slopes: Slopes, softening: Softening, *, compiled: bool = False) -> Tensor:
    r"""Write the gradient of ``x [n, V]`` over it, given that of what ``read_rows`` found.

    .. math:: \frac{\partial L}{\partial z_v} = g_\ell (1[v = y] - p_v) - g_H\, p_v (\log p_v + H) + g_{z_v}
    """
    given: tuple[Any, ...] = (ids, read.entropy, read.log_sum, slopes.log_prob, slopes.entropy, slopes.logits)
    if compiled:
        _fused(_write, x, softening, *given)
        return x
    for rows in _blocks(x):
        part: list[Any] = [None if g is None else g[rows] for g in given]
        _write(x[rows], softening, *part)
    return x


def _write(
    x: Tensor,
    softening: Softening,
    ids: Tensor,
    entropy: Tensor,
    log_sum: Tensor,
    of_log_prob: Tensor | None,
    of_entropy: Tensor | None,
    of_logits: Tensor | None,
) -> None:
    z = softening(x)
    if of_log_prob is None and of_entropy is None:
        slope = torch.zeros_like(z) if of_logits is None else of_logits.clone()
    else:
        slope = _slope_of(z, ids, entropy, log_sum, torch.zeros_like(entropy) if of_log_prob is None else of_log_prob, of_entropy)
        slope = slope if of_logits is None else slope.add_(of_logits)
    x.copy_(softening.back(slope, x))


def _slope_of(z: Tensor, ids: Tensor, entropy: Tensor, log_sum: Tensor, of_log_prob: Tensor, of_entropy: Tensor | None) -> Tensor:
    """Return the gradient of some rows of logits, as a tensor of its own."""
    log_p = z - log_sum.unsqueeze(-1)
    slope = log_p.exp()
    if of_entropy is None:
        slope.mul_(of_log_prob.neg().unsqueeze(-1))
    else:
        slope.mul_(log_p.clamp_(min=_FLOOR).mul_(of_entropy.neg().unsqueeze(-1)).sub_((of_entropy * entropy + of_log_prob).unsqueeze(-1)))
    if torch.compiler.is_compiling():  # a scatter would need the whole chunk in memory once more
        words = torch.arange(z.shape[-1], device=z.device)
        return slope + torch.where(words == ids.unsqueeze(-1), of_log_prob.unsqueeze(-1), 0.0)
    return slope.scatter_add_(-1, ids.unsqueeze(-1), of_log_prob.unsqueeze(-1))


def _fused(function: Callable[..., Any], *given: Any) -> Any:
    """Run a function as one graph that does for chunks of any length."""
    for x in given:
        if isinstance(x, Tensor):
            torch._dynamo.maybe_mark_dynamic(x, 0)
    return _compiled(function)(*given)


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function)


def _blocks(x: Tensor) -> Iterator[slice]:
    """Yield blocks of rows: as many as the cache holds, or on an accelerator as few kernels need; but never a large part of a large chunk."""
    n, words = x.shape
    cached = max(1, _BLOCK // max(words, 1))
    size = cached if n <= cached else max(1, n // 16)
    size = min(size, cached) if x.device.type == "cpu" else size
    for a in range(0, n, size):
        yield slice(a, min(a + size, n))
