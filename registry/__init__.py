"""The mechanism: names, kinds, signatures and plugins. It knows no algorithm."""

from .api import API
from .catalog import Catalog
from .component import (
    Component,
    Input,
    advantage_estimator,
    aggregation,
    auxiliary_loss,
    coefficient,
    component_of,
    correction,
    kl_estimator,
    policy_loss,
    reward_term,
    sequence_filter,
    task,
    tracker,
    value_loss,
)
from .errors import (
    ColumnError,
    ComponentError,
    Fault,
    LossaryError,
    Place,
    PluginError,
    PluginWarning,
    RecipeError,
    SignatureError,
    UnknownName,
    clipped,
    listing,
    nearest,
    text_of,
    worded,
)
from .fields import FIELDS, Column, Level, PerGroup, PerSequence, PerToken, Vocab, Vocabulary, column
from .fingerprint import fingerprint
from .hooks import hookimpl
from .kinds import KINDS, Kind
from .measures import Max, Mean, Measured, Min, Report, Totals
from .modules import file_inside, function_at
from .params import Strict, bounds_of, faults_of
from .rules import Rule
from .selection import Failure, Plugin, Selection, Skipped

__all__ = [
    "API", "FIELDS", "KINDS", "Catalog", "Column", "ColumnError", "Component", "ComponentError", "Failure", "Fault", "Input", "Kind", "Level", "LossaryError",
    "Max", "Mean", "Measured", "Min", "PerGroup", "PerSequence", "PerToken", "Place", "Plugin", "PluginError", "PluginWarning", "RecipeError", "Report",
    "Rule", "Selection", "SignatureError", "Skipped", "Strict", "Totals", "UnknownName", "Vocab", "Vocabulary", "advantage_estimator", "aggregation", "auxiliary_loss",
    "bounds_of", "clipped", "coefficient", "column", "component_of", "correction", "faults_of", "file_inside", "function_at", "fingerprint", "hookimpl", "kl_estimator", "listing", "nearest",
    "policy_loss", "reward_term", "sequence_filter", "task", "text_of", "tracker", "value_loss", "worded",
]  # fmt: skip
