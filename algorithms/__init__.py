"""Losses: one short file per algorithm."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .auxiliary.entropy import entropy
from .auxiliary.sft import sft
from .policy.aspo import aspo
from .policy.cispo import cispo
from .policy.decoupled_ppo import decoupled_ppo
from .policy.dppo_kl import dppo_kl
from .policy.dppo_tv import dppo_tv
from .policy.dro import dro
from .policy.dual_clip import dual_clip
from .policy.gmpo import gmpo
from .policy.grpo import grpo
from .policy.gspo import gspo
from .policy.gspo_token import gspo_token
from .policy.importance_sampling import importance_sampling
from .policy.luspo import luspo
from .policy.opmd import opmd
from .policy.ppo_clip import ppo_clip
from .policy.prime_ipo import prime_ipo
from .policy.prime_rl import prime_rl
from .policy.rec import rec
from .policy.reinforce import reinforce
from .policy.rollout_is import rollout_is
from .policy.sapo import sapo
from .policy.sppo import sppo
from .policy.tis import tis
from .policy.topr import topr
from .policy.two_sided_delta import two_sided_delta
from .policy.vespo import vespo
from .value.clipped_mse import clipped_mse

POLICY: tuple[Callable[..., Any], ...] = (
    ppo_clip, dual_clip, grpo, gspo, gspo_token, reinforce, importance_sampling,
    two_sided_delta, luspo, gmpo, aspo, dppo_tv, dppo_kl, sapo, sppo, rec,
    cispo, rollout_is, tis, topr, dro, opmd, vespo, decoupled_ppo, prime_rl, prime_ipo,
)  # fmt: skip


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [*POLICY, clipped_mse, sft, entropy]
