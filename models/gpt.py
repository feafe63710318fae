"""A small GPT: pre-norm blocks, learned positions, a plain linear head."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_model
from torch import Tensor, nn

from .language_model import Tokenizer


@dataclass
class KVCache:
    """Keys and values seen so far: for each layer, two tensors ``[B, heads, T, head_dim]``."""

    layers: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append one layer's new columns and return all of them."""
        if layer == len(self.layers):
            self.layers.append((key, value))
        else:
            old_key, old_value = self.layers[layer]
            self.layers[layer] = (torch.cat((old_key, key), dim=2), torch.cat((old_value, value), dim=2))
        return self.layers[layer]


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor, layer: int, cache: KVCache | None) -> Tensor:
        """Map ``x [B, T, d_model]`` to the same shape; ``mask [B, 1, T, past + T]`` is true where a key may be read."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.extend(layer, k, v)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention, then a four times wider MLP, each behind a norm and around a residual."""

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(d_model)
        self.attention = Attention(d_model, heads)
        self.mlp_norm = nn.RMSNorm(d_model)
        self.up = nn.Linear(d_model, 4 * d_model, bias=False)
        self.down = nn.Linear(4 * d_model, d_model, bias=False)

    def forward(self, x: Tensor, mask: Tensor, layer: int, cache: KVCache | None) -> Tensor:
        """Map ``x [B, T, d_model]`` to the same shape."""
        x = x + self.attention(self.attention_norm(x), mask, layer, cache)
        out: Tensor = x + self.down(F.gelu(self.up(self.mlp_norm(x))))
        return out


class GPT(nn.Module):
    """A decoder whose ``forward`` stops at the hidden states, so that a fused head can take over from there.

    Parameters
    ----------
    vocab_size, d_model, layers, heads
        The usual sizes; ``d_model`` is a multiple of ``heads``.
    context
        The most columns (prompt, completion and padding) that a forward may see.
    tied
        Whether ``lm_head`` shares the embedding's weight.
    value_head
        Whether to add ``value_head``, a linear layer from a hidden state to a scalar.
    seed
        Of the initial weights: they do not depend on torch's global generator.

    Notes
    -----
    A sequence's result does not depend on its padding, on either side. A token's position counts the real tokens before
    it, not the columns; a padded key is masked out, so its weight is exactly zero; and norms and MLPs act on one token
    alone. What is left is rounding, as a wider batch may be summed in another order. A padded query reads itself alone,
    which keeps its row finite (a softmax over nothing is NaN); no real token reads that row.
    """

    def __init__(
        self,
        vocab_size: int,
        *,
        d_model: int = 64,
        layers: int = 2,
        heads: int = 4,
        context: int = 32,
        tied: bool = False,
        value_head: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if d_model % heads:
            raise ValueError(f"d_model={d_model} is not a multiple of heads={heads}")
        self.context, self.scale = context, 1.0
        self.softcap: float | None = None
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.position = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(Block(d_model, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(d_model)
        self.lm_head = nn.Linear(d_model, vocab_size, bias=False)
        self.value_head = nn.Linear(d_model, 1) if value_head else None
        if tied:
            self.lm_head.weight = self.embedding.weight
        self._initialize(torch.Generator().manual_seed(seed))

    def _initialize(self, generator: torch.Generator) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5, generator=generator)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def cache(self) -> KVCache:
        """Return an empty cache of keys and values."""
        return KVCache()

    def save_pretrained(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write the weights; sizes and vocabulary follow from the recipe beside them."""
        folder.mkdir(parents=True, exist_ok=True)
        save_model(self, str(folder / "model.safetensors"))

    def forward(self, ids: Tensor, attention_mask: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return the hidden states that ``lm_head`` and ``value_head`` read.

        Parameters
        ----------
        ids : Tensor
            ``[B, T]`` token ids; with a cache, the new ones only.
        attention_mask : Tensor
            ``[B, T]`` true (or 1) at real tokens, padding on either side; with a cache, ``[B, past + T]``.
        cache : KVCache, optional
            Extended in place.

        Returns
        -------
        Tensor
            ``[B, T, d_model]``; what stands at padding means nothing.
        """
        columns, width = ids.shape[1], attention_mask.shape[1]
        if width > self.context:
            raise ValueError(f"{width} columns do not fit a context of {self.context}")
        real = attention_mask.bool()
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, width - columns :]
        key = torch.arange(width, device=ids.device)
        query = key[width - columns :, None]
        mask = ((key < query) & real[:, None, None, :]) | (key == query)
        x: Tensor = self.embedding(ids) + self.position(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, layer, cache)
        hidden: Tensor = self.norm(x)
        return hidden
