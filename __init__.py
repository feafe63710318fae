"""A glossary of losses: RL objectives for language models, registered by name and composed from YAML.

Importing this file imports nothing else: a public name is fetched from its folder when it is first used.
"""

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Catalog",
    "ColumnError",
    "Logits",
    "LossHead",
    "LossaryError",
    "Max",
    "Mean",
    "Min",
    "Objective",
    "PerGroup",
    "PerSequence",
    "PerToken",
    "PluginError",
    "Ranks",
    "RecipeError",
    "RecipeWarning",
    "Sequences",
    "SignatureError",
    "UnknownName",
    "advantage_estimator",
    "aggregation",
    "auxiliary_loss",
    "catalog",
    "coefficient",
    "column",
    "compose",
    "correction",
    "hookimpl",
    "kl_estimator",
    "load_recipe",
    "policy_loss",
    "reward_term",
    "sequence_filter",
    "task",
    "tracker",
    "value_loss",
]

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing
if TYPE_CHECKING:
    from . import batch as batch
    from . import conformance as conformance
    from . import diagnostics as diagnostics
    from . import numerics as numerics
    from . import pipeline as pipeline
    from . import registry as registry
    from .batch import Batch, Ranks, Sequences
    from .builtin import RecipeWarning, catalog, compose
    from .pipeline import Logits, LossHead, Objective, load_recipe
    from .registry import (
        Catalog,
        ColumnError,
        LossaryError,
        Max,
        Mean,
        Min,
        PerGroup,
        PerSequence,
        PerToken,
        PluginError,
        RecipeError,
        SignatureError,
        UnknownName,
        advantage_estimator,
        aggregation,
        auxiliary_loss,
        coefficient,
        column,
        correction,
        hookimpl,
        kl_estimator,
        policy_loss,
        reward_term,
        sequence_filter,
        task,
        tracker,
        value_loss,
    )
else:
    _HOME = {
        **dict.fromkeys(["Batch", "Ranks", "Sequences"], "batch"),
        **dict.fromkeys(["RecipeWarning", "catalog", "compose"], "builtin"),
        **dict.fromkeys(["Logits", "LossHead", "Objective", "load_recipe"], "pipeline"),
    }
    _HOME |= {name: "registry" for name in __all__ if name not in _HOME}
    _FOLDERS = {"batch", "conformance", "diagnostics", "numerics", "pipeline", "registry"}

    def __getattr__(name):
        from importlib import import_module

        if name in _FOLDERS:
            return import_module(f".{name}", __name__)
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
        return value

    def __dir__():
        return sorted({*globals(), *_HOME, *_FOLDERS})
