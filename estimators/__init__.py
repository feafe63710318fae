"""Estimators: KL, coefficients, rewards, filters, corrections and advantages, one short file each."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .advantage.a2po import a2po
from .advantage.batch_normalise import batch_normalise
from .advantage.clip_advantages import clip_advantages
from .advantage.gae import gae
from .advantage.gae_decoupled import gae_decoupled
from .advantage.gae_turn import gae_turn
from .advantage.gdpo import gdpo
from .advantage.gpg import gpg
from .advantage.group_normalise import group_normalise
from .advantage.grpo import grpo
from .advantage.grpo_components import grpo_components
from .advantage.grpo_leave_one_out import grpo_leave_one_out
from .advantage.grpo_passk import grpo_passk
from .advantage.grpo_per_turn import grpo_per_turn
from .advantage.kl_penalty import kl_penalty
from .advantage.maxrl import maxrl
from .advantage.mt_grpo import mt_grpo
from .advantage.opd import opd
from .advantage.opo import opo
from .advantage.optimal_token_baseline import optimal_token_baseline
from .advantage.passk_analytic import passk_analytic
from .advantage.pkpo import pkpo
from .advantage.prime import prime
from .advantage.reinforce_batch_mean import reinforce_batch_mean
from .advantage.reinforce_plus_plus import reinforce_plus_plus
from .advantage.reinforce_plus_plus_baseline import reinforce_plus_plus_baseline
from .advantage.remax import remax
from .advantage.rloo import rloo
from .advantage.rlsd import rlsd
from .advantage.running_baseline import running_baseline
from .advantage.running_whiten import running_whiten
from .advantage.sequence_whiten import sequence_whiten
from .advantage.spo import spo
from .advantage.tir_optimal_token_baseline import tir_optimal_token_baseline
from .advantage.vtrace import vtrace
from .advantage.whiten import whiten
from .coefficient.adaptive_kl import adaptive_kl
from .coefficient.constant import constant
from .coefficient.linear import linear
from .correction.pf_ppo import pf_ppo
from .filter.group_mean_bounds import group_mean_bounds
from .filter.group_spread import group_spread
from .filter.not_truncated import not_truncated
from .filter.seq_logprob_error import seq_logprob_error
from .kl.abs import absolute
from .kl.k1 import k1
from .kl.k2 import k2
from .kl.k3 import k3
from .reward.clip_rewards import clip_rewards
from .reward.length_penalty import length_penalty
from .reward.map_rewards import map_rewards
from .reward.overlong import overlong
from .reward.repetition import repetition
from .reward.scale_rewards import scale_rewards
from .reward.stop_properly import stop_properly


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    kl: list[Callable[..., Any]] = [k1, k2, k3, absolute]
    coefficients: list[Callable[..., Any]] = [constant, linear, adaptive_kl]
    critic: list[Callable[..., Any]] = [gae, gae_decoupled, gae_turn, vtrace]
    group: list[Callable[..., Any]] = [grpo, grpo_components, grpo_leave_one_out, rloo, opo, gpg]
    best: list[Callable[..., Any]] = [grpo_passk, passk_analytic, pkpo, maxrl]
    token: list[Callable[..., Any]] = [optimal_token_baseline, tir_optimal_token_baseline]
    step: list[Callable[..., Any]] = [reinforce_plus_plus, reinforce_plus_plus_baseline, reinforce_batch_mean, remax]
    memory: list[Callable[..., Any]] = [running_baseline, spo]
    teacher: list[Callable[..., Any]] = [a2po, opd]
    parts: list[Callable[..., Any]] = [gdpo, mt_grpo, grpo_per_turn, prime]
    after: list[Callable[..., Any]] = [
        whiten,
        batch_normalise,
        group_normalise,
        sequence_whiten,
        running_whiten,
        clip_advantages,
        kl_penalty,
        rlsd,
    ]
    rewards: list[Callable[..., Any]] = [clip_rewards, scale_rewards, map_rewards, overlong, stop_properly, repetition, length_penalty]
    filters: list[Callable[..., Any]] = [group_spread, group_mean_bounds, not_truncated, seq_logprob_error]
    corrections: list[Callable[..., Any]] = [pf_ppo]
    return [
        *kl,
        *coefficients,
        *rewards,
        *filters,
        *corrections,
        *critic,
        *group,
        *best,
        *token,
        *step,
        *memory,
        *teacher,
        *parts,
        *after,
    ]
