"""The doors through which a plugin enters: this page is both the interface and its reference."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pluggy

from .fields import Column

hookspec = pluggy.HookspecMarker("lossary")
hookimpl = pluggy.HookimplMarker("lossary")


class Hooks:
    """Everything that a plugin may offer. Each hook is optional; an implementation may name any subset of the parameters."""

    @hookspec
    def lossary_components(self) -> Iterable[Callable[..., Any]]:  # type: ignore[empty-body]
        """Return the decorated functions of this plugin."""

    @hookspec
    def lossary_fields(self) -> Iterable[Column]:  # type: ignore[empty-body]
        """Return the columns that this plugin adds to the vocabulary, made by ``column(...)``."""

    @hookspec
    def lossary_recipes(self) -> Mapping[str, str]:  # type: ignore[empty-body]
        """Return recipes as ``{name: YAML text}``; a recipe is found as ``name`` or ``vendor/name``."""

    @hookspec
    def lossary_event(self, event: Mapping[str, Any]) -> None:
        """Hear of an event of the trainer: ``{"event": "step" | "eval" | "checkpoint" | "end", "step": int, ...}``."""
