"""What a head does with a chunk of logits: the differentiable log-probs that recompute it, and the one pass that needs it once."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..numerics import Read, Slopes, Softening, accumulator, read_rows, write_slopes
from .compiled import handed_over
from .piecewise import Piecewise


@dataclass(frozen=True)
class Sheet:
    """How logits are made and read: what follows the product, its dtype, how many tokens at a time, and by which code."""

    softening: Softening
    dtype: torch.dtype
    chunk: int
    compiled: bool = False

    def spans(self, tokens: int) -> Iterator[tuple[int, int]]:
        """Yield chunks of equal size, one of no tokens if there are none."""
        size = -(-tokens // max(1, -(-tokens // self.chunk))) or 1
        for a in range(0, max(tokens, 1), size):
            yield a, min(a + size, tokens)

    def read(self, logits: Tensor, ids: Tensor) -> Read:
        """Read a chunk's log-probabilities and entropies."""
        return read_rows(logits, ids, self.softening, compiled=self.compiled)

    def written(self, logits: Tensor, ids: Tensor, read: Read, slopes: Slopes) -> Tensor:
        """Return a chunk's gradient, which was written over it."""
        return write_slopes(logits, ids, read, slopes, self.softening, compiled=self.compiled)

    def buffer(self, tokens: int, words: int, device: torch.device) -> Tensor:
        """Return the one tensor of a chunk's size."""
        longest = max(b - a for a, b in self.spans(tokens))
        return torch.empty(longest, words, dtype=self.dtype, device=device)


class Gradients:
    """The gradients of hidden states, weight and bias while chunks come in; those of the weights in float32 at least."""

    def __init__(self, needs: Sequence[bool], hidden: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        wide = torch.promote_types(weight.dtype, torch.float32)
        self.hidden = torch.empty_like(hidden) if needs[0] else None
        self.weight = torch.zeros_like(weight, dtype=wide) if needs[1] else None
        self.bias = torch.zeros_like(bias, dtype=wide) if bias is not None and needs[2] else None

    def add(self, a: int, b: int, slope: Tensor, h: Tensor, weight: Tensor) -> None:
        """Take in a chunk's gradient of the product ``[n, V]``."""
        if self.hidden is not None:
            if self.hidden.dtype == slope.dtype:
                torch.mm(slope, weight, out=self.hidden[a:b])
            else:
                self.hidden[a:b] = torch.mm(slope, weight)
        if self.weight is not None:
            add_product(self.weight, slope, h)
        if self.bias is not None:
            for total, part in zip(self.bias.chunk(16), slope.chunk(16, 1), strict=True):  # to sum a narrow chunk is to widen all of it
                total.add_(part.sum(0, dtype=total.dtype))

    def scaled(self, factor: Tensor | None) -> list[Tensor | None]:
        """Return them, multiplied in place."""
        found = [self.hidden, self.weight, self.bias]
        return [g if g is None or factor is None else g.mul_(factor.to(g.dtype)) for g in found]


def add_product(total: Tensor, slope: Tensor, h: Tensor) -> None:
    """``[V, H] += [n, V]^T [n, H]``, without rounding the sum to half precision.

    Where the product cannot be added in the wider dtype itself, it is made for some words at a time, in at most half of a chunk's memory.
    """
    if total.dtype == slope.dtype:
        total.addmm_(slope.t(), h)
        return
    if slope.device.type == "cuda" and total.dtype == torch.float32 and hasattr(torch.ops.aten.addmm, "dtype_out"):
        torch.addmm(total, slope.t(), h, out_dtype=torch.float32, out=total)
        return
    words = max(1, min(slope.shape[1], slope.numel() // (2 * h.shape[1]) or slope.shape[1]))
    for a in range(0, slope.shape[1], words):
        total[a : a + words].add_(torch.mm(slope[:, a : a + words].t(), h))


class Recompute(torch.autograd.Function):
    """Log-probability and entropy whose backward makes each chunk's logits anew: 4 products, for any use of the two."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, ids: Tensor, sheet: Sheet) -> tuple[Tensor, Tensor]:
        """Return both ``[N]``; one product."""
        found = hidden.new_empty(3, hidden.shape[0], dtype=torch.promote_types(sheet.dtype, torch.float32))
        with _plainly(hidden):
            w, c, buffer = _at_work(sheet, hidden, weight, bias)
            for a, b in sheet.spans(hidden.shape[0]):
                logits = _logits(hidden[a:b].to(sheet.dtype), w, c, buffer[: b - a])
                read = sheet.read(logits, ids[a:b])
                found[:, a:b] = torch.stack((read.log_prob, read.entropy, read.log_sum))
        log_prob, entropy, log_sum = (x.clone() for x in found)
        ctx.save_for_backward(hidden, weight, bias, ids, log_prob, entropy, log_sum)
        ctx.sheet = sheet
        ctx.set_materialize_grads(False)
        return log_prob, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, of_log_prob: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        """Make the logits again and write their gradient over them."""
        hidden, weight, bias, ids, *read = ctx.saved_tensors
        sheet: Sheet = ctx.sheet
        found = Gradients(ctx.needs_input_grad, hidden, weight, bias)
        with _plainly(hidden):
            w, c, buffer = _at_work(sheet, hidden, weight, bias)
            for a, b in sheet.spans(hidden.shape[0]):
                h = hidden[a:b].to(sheet.dtype)
                logits = _logits(h, w, c, buffer[: b - a])
                slopes = Slopes(*(None if g is None else g[a:b] for g in (of_log_prob, of_entropy)))
                found.add(a, b, sheet.written(logits, ids[a:b], Read(*(x[a:b] for x in read)), slopes), h, w)
        return *_narrowed(found.scaled(None), hidden, weight, bias), None, None


class OnePass(torch.autograd.Function):
    """The loss of all chunks, whose gradients are made while the logits of each are there: 3 products, and none in the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        ids: Tensor,
        loss: Piecewise,
        sheet: Sheet,
        scale: float | Tensor,
        learns: bool,
    ) -> Tensor:
        """Return the loss, 0-d; gradients are those of ``scale`` times as much."""
        total = hidden.new_zeros((), dtype=accumulator(hidden))
        found = Gradients(ctx.needs_input_grad, hidden, weight, bias) if learns else None
        with _plainly(hidden):
            w, c, buffer = _at_work(sheet, hidden, weight, bias)
            for a, b in sheet.spans(hidden.shape[0]):
                h = hidden[a:b].to(sheet.dtype)
                logits = _logits(h, w, c, buffer[: b - a])
                read = sheet.read(logits, ids[a:b])
                part, slopes = _differentiated(loss, a, b, read, logits, sheet, scale, learns)
                total = total + part
                if found is not None:
                    found.add(a, b, sheet.written(logits, ids[a:b], read, slopes), h, w)
        ctx.found, ctx.scale = found, scale
        ctx.like = [None if x is None else x.dtype for x in (hidden, weight, bias)]
        return total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Hand over the gradients."""
        found, ctx.found = handed_over(ctx.found, "a loss of LossHead's one pass"), None
        made = found.scaled(grad / ctx.scale)
        return *(None if g is None else g.to(dtype) for g, dtype in zip(made, ctx.like, strict=True)), *[None] * 5


def _differentiated(
    loss: Piecewise, a: int, b: int, read: Read, logits: Tensor, sheet: Sheet, scale: float | Tensor, learns: bool
) -> tuple[Tensor, Slopes]:
    """Return a chunk's loss, and what its parts are worth, by autograd on vectors of its length.

    Hooks of a host that is recomputing or offloading stay outside: to them every chunk would look like a reason to start over.
    """
    with torch.set_grad_enabled(learns), torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        log_prob, entropy = (x.detach().requires_grad_(learns) for x in (read.log_prob, read.entropy))
        z = sheet.softening(logits.detach()).requires_grad_(learns) if loss.words else None
        total = loss(a, b, log_prob, entropy, z)
        leaves = [log_prob, entropy] if z is None else [log_prob, entropy, z]
        if not learns or not total.requires_grad:
            return total.detach(), Slopes(None, None)
        return total.detach(), Slopes(*torch.autograd.grad(total * scale, leaves, allow_unused=True))


def _plainly(hidden: Tensor) -> AbstractContextManager[Any]:
    """Products are made in the dtype that was chosen, and losses in that of their inputs, whatever a host's autocast would do."""
    return torch.autocast(hidden.device.type, enabled=False)


def _at_work(sheet: Sheet, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    buffer = sheet.buffer(hidden.shape[0], weight.shape[0], hidden.device)
    return weight.detach().to(sheet.dtype), None if bias is None else bias.detach().to(sheet.dtype), buffer


def _logits(h: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    return torch.mm(h, weight.t(), out=out) if bias is None else torch.addmm(bias, h, weight.t(), out=out)


def _narrowed(found: list[Tensor | None], *like: Tensor | None) -> list[Tensor | None]:
    return [None if g is None or x is None else g.to(x.dtype) for g, x in zip(found, like, strict=True)]
