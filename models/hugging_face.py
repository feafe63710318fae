"""Any Hugging Face causal language model, from a folder, a GGUF file or an installed wheel: never from a network."""

import copy
import inspect
import os
import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .family import ModelError
from .lora import adapted, merged

ASK = "pip install 'lossary[hf]'"


class HuggingFaceTokenizer:
    """A tokenizer of transformers; ``template`` is put around a question, then the chat template if ``chat``."""

    def __init__(self, inner: Any, *, chat: bool, template: str) -> None:
        if inner.eos_token_id is None:
            raise ModelError("the model's tokenizer has no end-of-sequence token, which ends an answer.")
        if chat and not inner.chat_template:
            raise ModelError("model.chat is true, but the model's tokenizer has no chat template; say chat: false.")
        self.inner, self.chat, self.template = inner, chat, template
        self.eos_id = int(inner.eos_token_id)
        self.pad_id = int(inner.pad_token_id) if inner.pad_token_id is not None else self.eos_id

    def prompt(self, text: str) -> list[int]:
        """Return the ids of the question with its template and, without a chat template, the tokenizer's own special tokens."""
        asked = self.template.replace("{prompt}", text)
        if not self.chat:
            return list(self.inner(asked)["input_ids"])
        said = self.inner.apply_chat_template([{"role": "user", "content": asked}], add_generation_prompt=True, tokenize=False)
        return list(self.inner(said, add_special_tokens=False)["input_ids"])

    def encode(self, text: str) -> list[int]:
        """Return the ids of the text alone."""
        return list(self.inner(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text before the first end of sequence; any other special token is written out."""
        ids = list(ids)
        stop = ids.index(self.eos_id) if self.eos_id in ids else len(ids)
        return str(self.inner.decode(ids[:stop], skip_special_tokens=False))


class HuggingFaceDecoder(nn.Module):
    """A causal language model that stops at its hidden states; ``lm_head`` is the model's own output layer."""

    def __init__(self, inner: Any, *, value_head: bool = False, seed: int = 0) -> None:
        super().__init__()
        config = inner.config.get_text_config()
        self.inner = inner
        # transformers renamed it, and warns of the old name.
        self._cache_key = "cache" if "cache" in inspect.signature(inner.base_model.forward).parameters else "past_key_values"
        self.context = int(getattr(config, "max_position_embeddings", None) or 2**31)
        self.softcap: float | None = getattr(config, "final_logit_softcapping", None)
        divisor = getattr(config, "logits_scaling", None)
        self.logit_scale = float(getattr(config, "logit_scale", None) or (1 / divisor if divisor else 1.0))
        self.value_head = None
        if value_head:
            self.value_head = nn.Linear(self.lm_head.weight.shape[1], 1)
            nn.init.normal_(self.value_head.weight, std=0.02, generator=torch.Generator().manual_seed(seed))
            nn.init.zeros_(self.value_head.bias)

    @property
    def lm_head(self) -> Any:
        """The layer from hidden states to logits."""
        return self.inner.get_output_embeddings()

    def put_head(self, head: nn.Module) -> None:
        """Put another module in the place of ``lm_head``."""
        self.inner.set_output_embeddings(head)

    def new_cache(self) -> Any:
        """Return an empty cache of keys and values."""
        from transformers import DynamicCache

        return DynamicCache()

    def forward(self, ids: Tensor, attention_mask: Tensor, cache: Any = None) -> Tensor:
        """Return the hidden states ``[B, T, H]``; positions count real tokens, so that padding changes nothing."""
        width = attention_mask.shape[1]
        if width > self.context:
            raise ModelError(f"{width} columns do not fit the model's context of {self.context}.")
        positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)[:, width - ids.shape[1] :]
        kept = {} if cache is None else {self._cache_key: cache}
        out = self.inner.base_model(
            input_ids=ids, attention_mask=attention_mask.long(), position_ids=positions, use_cache=cache is not None, **kept
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    @torch.no_grad()
    def check(self, name: str) -> None:
        """Refuse a model whose logits are not what its hidden states and its head make: its loss would be another model's."""
        ids = torch.arange(1, 5)[None]
        logits = self.lm_head(self(ids, torch.ones_like(ids)))[0] * self.logit_scale
        if self.softcap:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        theirs = self.inner(ids).logits[0]
        if logits.shape != theirs.shape or not torch.allclose(logits.float(), theirs.float(), rtol=1e-2, atol=1e-2):
            raise ModelError(
                f"{name}: its logits are not its output layer on its hidden states, so that the fused head would be wrong for it."
            )


class HuggingFaceFamily:
    """The models of one run, all read from one place."""

    portable = True

    def __init__(
        self, folder: Path, *, gguf: str | None = None, chat: bool = False, template: str = "{prompt}", train_embeddings: bool = True
    ) -> None:
        self.name, self.train_embeddings = str(folder / gguf if gguf else folder), train_embeddings
        try:
            import transformers
        except ModuleNotFoundError as error:
            raise ModelError(f"{self.name} needs transformers: {ASK}") from error
        how: dict[str, Any] = {"local_files_only": True, **({"gguf_file": gguf} if gguf else {})}
        if not folder.is_dir() or (gguf and not (folder / gguf).is_file()):
            raise ModelError(f"{self.name}: there is no such {'file' if gguf else 'folder'}.")
        if not gguf and not (folder / "config.json").is_file():
            raise ModelError(f"{self.name} is no folder of a model: it has no config.json.")
        try:
            read = transformers.AutoTokenizer.from_pretrained(str(folder), **how)
            inner = transformers.AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32, **how)
        except ImportError as error:
            raise ModelError(f"{self.name}: {_first(error)}: {ASK}") from error
        except Exception as error:  # transformers raises many kinds for what it cannot read
            raise ModelError(f"{self.name} cannot be read as a causal language model: {type(error).__name__}: {_first(error)}") from error
        self.tokenizer = HuggingFaceTokenizer(read, chat=chat, template=template)
        self._inner = _plain(inner, transformers).float().eval()
        self._inner.requires_grad_(False)
        HuggingFaceDecoder(self._inner).check(self.name)

    def model(self, *, value_head: bool = False, seed: int = 0) -> HuggingFaceDecoder:
        """Return a copy of what was read, with or without a head for values; dropout stays off, for it would make two policies of one."""
        made = HuggingFaceDecoder(copy.deepcopy(self._inner), value_head=value_head, seed=seed).eval().requires_grad_(True)
        if not self.train_embeddings:
            made.inner.get_input_embeddings().requires_grad_(False)
        return made

    def save(self, model: nn.Module, folder: Path) -> bool:
        """Write a folder that ``from_pretrained`` loads, whole or not at all; adapters are merged into the weights."""
        inner: Any = model.inner
        if adapted(inner):
            found = merged(inner)
            inner = copy.deepcopy(self._inner).to(next(iter(found.values())).dtype)
            inner.load_state_dict(found)
        aside = folder.with_name(folder.name + ".partial")
        shutil.rmtree(aside, ignore_errors=True)
        try:
            inner.save_pretrained(aside)
            self.tokenizer.inner.save_pretrained(aside)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(aside, folder)
        except OSError as error:
            raise ModelError(f"the model cannot be written to {folder}: {error}") from error
        return True


def _plain(inner: Any, transformers: Any) -> Any:
    """Return the model without the mark of a file format: one read from GGUF refuses to be saved, though its weights are ordinary."""
    if getattr(inner.config, "quantization_config", None) is None:
        return inner
    config = copy.deepcopy(inner.config)
    del config.quantization_config
    made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    made.load_state_dict(inner.state_dict())
    made.generation_config = inner.generation_config
    return made


def _first(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def in_wheel(name: str) -> tuple[Path, str | None]:
    """Return where an installed distribution keeps its one model: the folder and, where it is a GGUF file, that file's name."""
    try:
        files = distribution(name).files or []
    except PackageNotFoundError:
        raise ModelError(f"no distribution {name!r} is installed: pip install --no-deps {name}") from None
    found = [Path(str(f.locate())) for f in files if f.suffix == ".gguf"]
    folders = [Path(str(f.locate())).parent for f in files if f.name == "config.json"]
    if len(found) + len(folders) != 1:
        raise ModelError(
            f"the distribution {name!r} holds {len(found)} GGUF files and {len(folders)} model folders; expected one of either."
        )
    return (found[0].parent, found[0].name) if found else (folders[0], None)
