"""Losses: one short file per algorithm."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .auxiliary.entropy import entropy
from .auxiliary.sft import sft
from .policy.aspo import aspo
from .policy.dppo_kl import dppo_kl
from .policy.dppo_tv import dppo_tv
from .policy.dual_clip import dual_clip
from .policy.gmpo import gmpo
from .policy.grpo import grpo
from .policy.gspo import gspo
from .policy.gspo_token import gspo_token
from .policy.importance_sampling import importance_sampling
from .policy.luspo import luspo
from .policy.ppo_clip import ppo_clip
from .policy.rec import rec
from .policy.reinforce import reinforce
from .policy.sapo import sapo
from .policy.sppo import sppo
from .policy.two_sided_delta import two_sided_delta
from .value.clipped_mse import clipped_mse

POLICY: tuple[Callable[..., Any], ...] = (
    ppo_clip, dual_clip, grpo, gspo, gspo_token, reinforce, importance_sampling,
    two_sided_delta, luspo, gmpo, aspo, dppo_tv, dppo_kl, sapo, sppo, rec,
)  # fmt: skip


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [*POLICY, clipped_mse, sft, entropy]
