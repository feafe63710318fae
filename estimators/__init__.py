"""Estimators: KL, coefficients and advantages, one short file each."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .advantage.gae import gae
from .advantage.gae_decoupled import gae_decoupled
from .advantage.gae_turn import gae_turn
from .advantage.gpg import gpg
from .advantage.grpo import grpo
from .advantage.grpo_leave_one_out import grpo_leave_one_out
from .advantage.grpo_passk import grpo_passk
from .advantage.maxrl import maxrl
from .advantage.opo import opo
from .advantage.optimal_token_baseline import optimal_token_baseline
from .advantage.passk_analytic import passk_analytic
from .advantage.pkpo import pkpo
from .advantage.reinforce_batch_mean import reinforce_batch_mean
from .advantage.reinforce_plus_plus import reinforce_plus_plus
from .advantage.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from .advantage.remax import remax
from .advantage.rloo import rloo
from .advantage.tir_optimal_token_baseline import tir_optimal_token_baseline
from .advantage.vtrace import vtrace
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
    kl: list[Callable[..., Any]] = [k1, k2, k3, absolute]
    coefficients: list[Callable[..., Any]] = [constant, linear, adaptive_kl]
    critic: list[Callable[..., Any]] = [gae, gae_decoupled, gae_turn, vtrace]
    group: list[Callable[..., Any]] = [grpo, grpo_leave_one_out, rloo, opo, gpg]
    best: list[Callable[..., Any]] = [grpo_passk, passk_analytic, pkpo, maxrl]
    token: list[Callable[..., Any]] = [optimal_token_baseline, tir_optimal_token_baseline]
    step: list[Callable[..., Any]] = [reinforce_plus_plus, reinforce_plus_plus_baseline, reinforce_batch_mean, remax]
    after: list[Callable[..., Any]] = [whiten]
    return [*kl, *coefficients, *critic, *group, *best, *token, *step, *after]
