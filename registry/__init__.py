"""The mechanism: names, kinds, signatures and plugins. It knows no algorithm."""

from .catalog import Catalog, Failure, Plugin
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
    RecipeError,
    SignatureError,
    UnknownName,
    listing,
    nearest,
)
from .fields import FIELDS, Column, Level, PerGroup, PerSequence, PerToken, Vocab, Vocabulary, column
from .hooks import hookimpl
from .kinds import KINDS, Kind
from .measures import Max, Mean, Measured, Min, Report, Totals
from .params import Strict, bounds_of, faults_of
from .rules import Rule

__all__ = [
    "FIELDS", "KINDS", "Catalog", "Column", "ColumnError", "Component", "ComponentError", "Failure", "Fault", "Input", "Kind", "Level", "LossaryError",
    "Max", "Mean", "Measured", "Min", "PerGroup", "PerSequence", "PerToken", "Place", "Plugin", "PluginError", "RecipeError", "Report",
    "Rule", "SignatureError", "Strict", "Totals", "UnknownName", "Vocab", "Vocabulary", "advantage_estimator", "aggregation", "auxiliary_loss",
    "bounds_of", "coefficient", "column", "component_of", "correction", "faults_of", "hookimpl", "kl_estimator", "listing", "nearest",
    "policy_loss", "reward_term", "sequence_filter", "task", "tracker", "value_loss",
]  # fmt: skip
