"""Aggregations: how much each token weighs in the step, one short file each."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .constant_divisor import constant_divisor
from .group_mean import group_mean
from .length_power import length_power
from .rollout_mean import rollout_mean
from .seq_mean_token_mean import seq_mean_token_mean
from .seq_mean_token_sum import seq_mean_token_sum
from .seq_mean_token_sum_norm import seq_mean_token_sum_norm
from .token_mean import token_mean
from .token_sum import token_sum


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [
        token_mean,
        token_sum,
        seq_mean_token_mean,
        seq_mean_token_sum,
        seq_mean_token_sum_norm,
        group_mean,
        length_power,
        rollout_mean,
        constant_divisor,
    ]
