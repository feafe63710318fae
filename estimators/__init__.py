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
from .coefficient.adaptive_entropy import adaptive_entropy
from .coefficient.adaptive_kl import adaptive_kl
from .coefficient.constant import constant
from .coefficient.cosine import cosine
from .coefficient.linear import linear
from .correction.batch_normalise import batch_normalise as normalise_weights
from .correction.drop_impossible import drop_impossible
from .correction.drop_truncated import drop_truncated
from .correction.high_entropy import high_entropy
from .correction.icepop import icepop
from .correction.m2po import m2po
from .correction.masked_is import masked_is
from .correction.off_policy_sequence import off_policy_sequence
from .correction.outlier import outlier
from .correction.pf_ppo import pf_ppo
from .correction.reject_binary_kl import reject_binary_kl
from .correction.reject_k1 import reject_k1
from .correction.reject_k2 import reject_k2
from .correction.reject_k3 import reject_k3
from .correction.reject_probability import reject_probability
from .correction.target_ess import target_ess
from .correction.truncated_is import truncated_is
from .correction.veto import veto
from .filter.group_mean_bounds import group_mean_bounds
from .filter.group_spread import group_spread
from .filter.not_truncated import not_truncated
from .filter.seq_logprob_error import seq_logprob_error
from .kl.abs import absolute
from .kl.binary_kl import binary_kl
from .kl.full import full
from .kl.importance_sequence import importance_sequence
from .kl.k1 import k1
from .kl.k2 import k2
from .kl.k3 import k3
from .kl.k3_huber import k3_huber
from .kl.k3_importance import k3_importance
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
    kl: list[Callable[..., Any]] = [full, k1, k2, k3, absolute, k3_huber, k3_importance, importance_sequence, binary_kl]
    coefficients: list[Callable[..., Any]] = [constant, linear, cosine, adaptive_kl, adaptive_entropy]
    critic: list[Callable[..., Any]] = [gae, gae_decoupled, gae_turn, vtrace]
    group: list[Callable[..., Any]] = [grpo, grpo_components, grpo_leave_one_out, rloo, opo, gpg]
    best: list[Callable[..., Any]] = [grpo_passk, passk_analytic, pkpo, maxrl]
    token: list[Callable[..., Any]] = [optimal_token_baseline, tir_optimal_token_baseline]
    step: list[Callable[..., Any]] = [reinforce_plus_plus, reinforce_plus_plus_baseline, reinforce_batch_mean, remax]
    memory: list[Callable[..., Any]] = [running_baseline, spo]
    teacher: list[Callable[..., Any]] = [a2po, opd]
    parts: list[Callable[..., Any]] = [gdpo, mt_grpo, grpo_per_turn, prime]
    scale: list[Callable[..., Any]] = [whiten, batch_normalise, group_normalise, sequence_whiten, running_whiten, clip_advantages]
    token_by_token: list[Callable[..., Any]] = [kl_penalty, rlsd]
    advantages = [*critic, *group, *best, *token, *step, *memory, *teacher, *parts, *scale, *token_by_token]
    rewards: list[Callable[..., Any]] = [clip_rewards, scale_rewards, map_rewards, overlong, stop_properly, repetition, length_penalty]
    filters: list[Callable[..., Any]] = [group_spread, group_mean_bounds, not_truncated, seq_logprob_error]
    weights: list[Callable[..., Any]] = [truncated_is, masked_is, icepop, target_ess, normalise_weights, pf_ppo]
    rejections: list[Callable[..., Any]] = [reject_k1, reject_k2, reject_k3, reject_probability, reject_binary_kl, m2po]
    whole: list[Callable[..., Any]] = [veto, outlier, off_policy_sequence, drop_truncated, drop_impossible, high_entropy]
    return [*kl, *coefficients, *rewards, *filters, *weights, *rejections, *whole, *advantages]
