"""Any causal language model that transformers loads: from a folder, from a GGUF file, or from an installed wheel that brings one."""

import copy
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..registry import listing
from .language_model import ModelError, Tokenizer


def transformers() -> Any:
    """Return the package; a ``ModelError`` says how to get it."""
    try:
        import transformers as package
    except ImportError as error:
        raise ModelError(f"models of Hugging Face need the extra [hf]: pip install 'lossary[hf]' ({error}).") from None
    return package


class HFTokenizer:
    """A tokenizer of transformers. Where it knows how to put a question in a chat, ``prompt`` does so; else the text stands alone."""

    def __init__(self, tokenizer: Any, *, chat: bool) -> None:
        if tokenizer.eos_token_id is None:
            raise ModelError("the tokenizer names no end of sequence, and without one no answer ends.")
        if chat and not tokenizer.chat_template:
            raise ModelError("chat: true, but the tokenizer has no chat template; say chat: false.")
        self.inner, self.chat = tokenizer, chat
        self.eos_id: int = tokenizer.eos_token_id
        self.pad_id: int = self.eos_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id

    @property
    def vocab_size(self) -> int:
        """How many ids there are."""
        return len(self.inner)

    def prompt(self, text: str) -> list[int]:
        """Return a question, as the next turn of a chat where there is a template."""
        if not self.chat:
            begin = self.inner.bos_token_id
            return [*([] if begin is None else [begin]), *self.encode(text)]
        said = self.inner.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True, tokenize=False)
        return self.encode(said)

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without any that the tokenizer would add of its own accord."""
        ids: list[int] = self.inner(text, add_special_tokens=False)["input_ids"]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text before the first end of sequence."""
        ids = list(ids)
        stop = ids.index(self.eos_id) if self.eos_id in ids else len(ids)
        text: str = self.inner.decode(ids[:stop], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text


class HFModel(nn.Module):
    """A causal model of transformers, cut before its head. What the head does to its logits (scale, soft cap) is read from its config."""

    def __init__(self, model: Any, *, value_head: bool = False, seed: int = 0) -> None:
        super().__init__()
        head = model.get_output_embeddings()
        if not isinstance(head, nn.Linear):
            raise ModelError(f"{type(model).__name__} has no linear head over its vocabulary; expected a causal language model.")
        self.model, config = model, model.config.get_text_config()
        self.context: int = getattr(config, "max_position_embeddings", None) or 2**31
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        self.scale: float = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
        self.value_head: nn.Linear | None = None
        if value_head:
            self.value_head = nn.Linear(head.weight.shape[1], 1, dtype=torch.float32)
            with torch.no_grad():
                self.value_head.weight.normal_(std=head.weight.shape[1] ** -0.5, generator=torch.Generator().manual_seed(seed))
                self.value_head.bias.zero_()

    @property
    def lm_head(self) -> nn.Linear:
        """The head over the vocabulary; it may share the embedding's weight."""
        head: nn.Linear = self.model.get_output_embeddings()
        return head

    def forward(self, ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Tensor:
        """Return the hidden states that the head reads, ``[B, T, H]``; what stands at padding means nothing."""
        columns, width = ids.shape[1], attention_mask.shape[1]
        if width > self.context:
            raise ModelError(f"{width} columns do not fit a context of {self.context}.")
        real = attention_mask.long()
        positions = (real.cumsum(dim=1) - 1).clamp(min=0)[:, width - columns :]
        out = self.model.base_model(
            input_ids=ids, attention_mask=real, position_ids=positions, past_key_values=cache, use_cache=cache is not None
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def cache(self) -> Any:
        """Return an empty cache of keys and values."""
        return transformers().DynamicCache(config=self.model.config)

    def save_pretrained(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a folder that transformers loads; a value head is not part of it."""
        self.model.save_pretrained(folder)
        if isinstance(tokenizer, HFTokenizer):
            tokenizer.inner.save_pretrained(folder)


def load(
    folder: Path, *, gguf: str | None = None, dtype: torch.dtype = torch.float32, chat: bool | None = None
) -> tuple[HFModel, HFTokenizer]:
    """Read a model and its tokenizer from disk, never from a hub; whatever keeps them from being read raises ``ModelError``.

    ``gguf`` names a file in the folder, whose weights are widened to ``dtype``. Without ``chat`` its template is used if it has one.
    """
    if not folder.is_dir():
        raise ModelError(f"there is no folder {folder}{_beside(folder)}.")
    file = {} if gguf is None else {"gguf_file": gguf}
    package, here = transformers(), folder / gguf if gguf else folder
    try:
        tokenizer = package.AutoTokenizer.from_pretrained(str(folder), local_files_only=True, **file)
        model = package.AutoModelForCausalLM.from_pretrained(str(folder), local_files_only=True, dtype=dtype, **file)
    except Exception as error:  # transformers raises many kinds for a folder that holds no model
        why = " ".join(str(error).split())
        raise ModelError(f"{here} holds no causal language model that transformers reads: {type(error).__name__}: {why[:300]}") from error
    model.config.use_cache = True
    return HFModel(model), HFTokenizer(tokenizer, chat=bool(tokenizer.chat_template) if chat is None else chat)


def in_wheel(name: str) -> Path:
    """Return the one GGUF file that an installed distribution brings."""
    try:
        found = [Path(str(f.locate())) for f in distribution(name).files or () if f.suffix == ".gguf"]
    except PackageNotFoundError:
        raise ModelError(f"no distribution {name!r} is installed: pip install {name}.") from None
    if len(found) != 1:
        raise ModelError(f"the distribution {name!r} brings {len(found)} GGUF files ({listing(f.name for f in found)}); expected one.")
    return found[0]


def with_values(model: HFModel, seed: int) -> HFModel:
    """Return a critic that begins as a copy of a policy, with a head of its own for the value."""
    return HFModel(copy.deepcopy(model.model), value_head=True, seed=seed)


def _beside(folder: Path) -> str:
    near = sorted(p.name for p in folder.parent.iterdir() if p.is_dir())[:5] if folder.parent.is_dir() else []
    return f"; beside it are {listing(near)}" if near else ""
