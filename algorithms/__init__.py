"""Losses: one short file per algorithm."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .auxiliary.dft import dft
from .auxiliary.entropy import entropy
from .auxiliary.positive_nll import positive_nll
from .auxiliary.sft import sft
from .policy.dual_clip import dual_clip
from .policy.grpo import grpo
from .policy.gspo import gspo
from .policy.gspo_token import gspo_token
from .policy.importance_sampling import importance_sampling
from .policy.ppo_clip import ppo_clip
from .policy.reinforce import reinforce
from .value.clipped_mse import clipped_mse
from .value.huber import huber


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [
        ppo_clip,
        dual_clip,
        grpo,
        gspo,
        gspo_token,
        reinforce,
        importance_sampling,
        clipped_mse,
        huber,
        sft,
        dft,
        positive_nll,
        entropy,
    ]
