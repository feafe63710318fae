"""The head: from hidden states to log-probabilities, or right to gradients, a chunk of tokens at a time; ``[N, V]`` is never there."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..batch.layout import Layout
from ..numerics import Softening
from ..registry import ColumnError, LossaryError
from .head_passes import OnePass, Recompute, Sheet
from .piecewise import Piecewise

_LEAST = 256
"""Tokens in a chunk that a memory budget always allows: products of fewer rows leave the machine idle."""
_OVER_WORDS = 13
"""Tensors of a chunk's size that a loss over the vocabulary needs with its gradient, that of the dearest divergence."""


class Scores(NamedTuple):
    """What a head says of sampled tokens, each ``[N]`` in nats and differentiable."""

    log_prob: Tensor
    entropy: Tensor


class LossHead(nn.Module):
    """The last layer of a policy, which gives losses their gradients without ever holding the logits of a whole batch.

    It takes the place of the linear layer whose weight it shares, ``model.lm_head = LossHead(model.lm_head)``, with the same names in a
    ``state_dict``; ``head(hidden)`` is what that layer returned. ``objective.loss(micro, policy=head.on(hidden))`` makes gradients in one pass (3
    matrix products) where every term looks at one token at a time, and recomputes each chunk's logits (4 products) otherwise.
    ``head.scores(hidden, batch)`` returns log-probability and entropy for any other use.

    ``scale`` multiplies the logits (1 / temperature) after ``softcap``, if there is one, has bent them. ``chunk_tokens`` is how many tokens
    are worked on together; without it, as many as ``chunk_mib`` of memory hold, at least 256. ``compile`` fuses what is done with a chunk between the
    products, which is worth its seconds of compilation on an accelerator above all. A layer that is more than a weight and a
    bias (adapters, quantised weights), and one whose vocabulary is cut over ranks, raises ``LossaryError``.
    """

    def __init__(
        self,
        lm_head: nn.Module,
        *,
        scale: float = 1.0,
        softcap: float | None = None,
        chunk_tokens: int | None = None,
        chunk_mib: float = 512.0,
        compile: bool = False,
    ) -> None:
        super().__init__()
        if not scale > 0 or (softcap is not None and not softcap > 0):
            raise LossaryError(f"scale is {scale} and softcap {softcap}; both must be above 0.")
        if (chunk_tokens is not None and chunk_tokens < 1) or not chunk_mib > 0:
            raise LossaryError(f"chunk_tokens is {chunk_tokens} and chunk_mib {chunk_mib}; expected at least 1 token and some memory.")
        _require_plain(lm_head)
        self.weight: nn.Parameter = lm_head.weight  # type: ignore[assignment]
        self.bias: nn.Parameter | None
        self.register_parameter("bias", getattr(lm_head, "bias", None))
        self.softening, self.chunk_tokens, self.chunk_mib, self.compile_rows = Softening(scale, softcap), chunk_tokens, chunk_mib, compile

    def extra_repr(self) -> str:
        """Return its sizes."""
        words, width = self.weight.shape
        return f"hidden={width}, words={words}, scale={self.softening.scale}, softcap={self.softening.softcap}"

    def forward(self, hidden: Tensor, work: "_Work | None" = None) -> Any:
        """Return what the layer did, before scale and softcap, or do what ``on(hidden)`` or ``scores`` ask for; sharded weights are whole only in here."""
        if work is None:
            return nn.functional.linear(hidden, self.weight, self.bias)
        return work(self, hidden)

    def on(self, hidden: Tensor, *, grad_scale: float | Tensor | None = None) -> "HeadOn":
        """Return the policy that ``objective.loss(micro, policy=...)`` takes; ``hidden [N, H]`` is packed, or in the batch's shape.

        ``grad_scale`` is what the loss will be multiplied with before ``backward``, as a ``GradScaler`` does: gradients are made with it,
        and float16 is refused without it, for they would vanish.
        """
        return HeadOn(self, hidden, grad_scale)

    def scores(self, hidden: Tensor, of: Batch | Tensor) -> Scores:
        """Return log-probability and entropy of a batch's sampled tokens, or of given ids ``[N]``; one product where nothing learns."""
        if isinstance(of, Batch):
            return Scores(*self.on(hidden).packed(of.layout).scores(of["token_ids"].long()))
        return Scores(*self.on(hidden).scores(of.long()))

    def sheet(self, hidden: Tensor, tensors: int = 1) -> Sheet:
        """Return the layer ready for work; ``tensors`` is how many of a chunk's size are needed, in float32."""
        _require_whole(self.weight)
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        if dtype == hidden.dtype != self.weight.dtype:
            raise ColumnError(f"hidden states are {hidden.dtype}, the weight of the head is {self.weight.dtype}; bring both to one dtype.")
        if hidden.dim() != 2 or hidden.shape[1] != self.weight.shape[1]:
            raise ColumnError(f"hidden states are {list(hidden.shape)} after packing; expected [tokens, {self.weight.shape[1]}].")
        chunk = self.chunk_tokens
        if chunk is None:
            row = self.weight.shape[0] * (dtype.itemsize + (tensors - 1) * max(4, dtype.itemsize))
            chunk = max(_LEAST, int(self.chunk_mib * 2**20) // row)
        return Sheet(self.softening, dtype, chunk, self.compile_rows)


@dataclass(frozen=True)
class HeadOn:
    """A head and the hidden states that it reads."""

    head: LossHead
    hidden: Tensor
    grad_scale: float | Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """In which log-probabilities come: float32 at least."""
        return torch.promote_types(self.hidden.dtype, torch.float32)

    def packed(self, layout: Layout) -> "HeadOn":
        """Bring the hidden states into the batch's order."""
        return replace(self, hidden=layout.pack_rows(self.hidden, "hidden"))

    def take(self, tokens: Tensor) -> "HeadOn":
        """Return those of some tokens."""
        return replace(self, hidden=self.hidden.index_select(0, tokens))

    def scores(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probability and entropy ``[N]``, differentiable."""
        log_prob, entropy = self.head(self.hidden, _Scoring(token_ids))
        return log_prob, entropy

    def passed(self, token_ids: Tensor, loss: Piecewise, factor: float) -> Tensor:
        """Return the loss of all pieces, of which ``factor`` times as much is going to be differentiated."""
        total: Tensor = self.head(self.hidden, _Passing(token_ids, loss, factor, self.grad_scale))
        return total


class _Work(Protocol):
    """Something to be done inside ``forward``. No tensor of it is an argument there, so that no host casts or moves what is not hidden."""

    def __call__(self, head: LossHead, hidden: Tensor) -> Any:
        """Do it."""


@dataclass(frozen=True)
class _Scoring:
    token_ids: Tensor

    def __call__(self, head: LossHead, hidden: Tensor) -> tuple[Tensor, Tensor]:
        _require_ids(self.token_ids, hidden)
        sheet = head.sheet(hidden)
        found: tuple[Tensor, Tensor] = Recompute.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, self.token_ids, sheet
        )
        return found


@dataclass(frozen=True)
class _Passing:
    token_ids: Tensor
    loss: Piecewise
    factor: float
    grad_scale: float | Tensor | None

    def __call__(self, head: LossHead, hidden: Tensor) -> Tensor:
        _require_ids(self.token_ids, hidden)
        sheet = head.sheet(hidden, tensors=_OVER_WORDS if self.loss.words else 1)
        learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (hidden, head.weight, head.bias))
        if learns and sheet.dtype == torch.float16 and self.grad_scale is None:
            raise LossaryError("float16 gradients vanish unless the loss is scaled: head.on(hidden, grad_scale=scaler.get_scale()).")
        scale = self.factor * (1.0 if self.grad_scale is None else self.grad_scale)
        total: Tensor = OnePass.apply(  # type: ignore[no-untyped-call]
            hidden, head.weight, head.bias, self.token_ids, self.loss, sheet, scale, learns
        )
        return total


def _require_ids(ids: Tensor, hidden: Tensor) -> None:
    if ids.shape != hidden.shape[:1]:
        raise ColumnError(f"there are {list(ids.shape)} token ids and {list(hidden.shape)} hidden states; expected one id for each.")


def _require_plain(layer: nn.Module) -> None:
    """Only a weight and a bias are understood: anything else that a layer does would be left out without a word."""
    name, weight = type(layer).__name__, getattr(layer, "weight", None)
    if not isinstance(layer, nn.Linear | nn.Embedding | LossHead) or not isinstance(weight, nn.Parameter):
        raise LossaryError(
            f"LossHead({name}): expected a plain nn.Linear (or the tied nn.Embedding), with the weight [V, H] as a parameter."
        )
    if type(layer).forward not in (nn.Linear.forward, nn.Embedding.forward, LossHead.forward):
        raise LossaryError(f"LossHead({name}): its forward is not that of a plain layer, so more than weight and bias may be needed.")


def _require_whole(weight: Tensor) -> None:
    """A part of the vocabulary, or of the rows, would give wrong numbers without an error."""
    if getattr(weight, "tensor_model_parallel", False):
        raise LossaryError(
            "the weight of the head holds a part of the vocabulary (tensor parallel); LossHead needs all words on each rank."
        )
    if hasattr(weight, "placements"):
        raise LossaryError(
            f"the weight of the head is a DTensor {list(weight.placements)}. FSDP2 makes it whole in the head's own forward: "
            "model.lm_head = LossHead(model.lm_head), then fully_shard(model.lm_head), or fully_shard([embedding, model.lm_head]) if it is "
            "tied. A vocabulary cut over ranks (tensor parallel) is not supported."
        )
