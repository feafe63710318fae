"""Estimators: KL, coefficients and advantages, one short file each."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .advantage.gae import gae
from .advantage.grpo import grpo
from .advantage.reinforce_plus_plus import reinforce_plus_plus
from .advantage.rloo import rloo
from .advantage.whiten import whiten
from .coefficient.adaptive_kl import adaptive_kl
from .coefficient.constant import constant
from .coefficient.linear import linear
from .kl.abs import absolute
from .kl.k1 import k1
from .kl.k2 import k2
from .kl.k3 import k3


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [k1, k2, k3, absolute, constant, linear, adaptive_kl, gae, grpo, rloo, reinforce_plus_plus, whiten]
