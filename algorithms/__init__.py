"""Losses: one short file per algorithm."""

from collections.abc import Callable, Iterable
from typing import Any

from ..registry import hookimpl
from .auxiliary.chord import chord
from .auxiliary.dft import dft
from .auxiliary.distill import distill
from .auxiliary.distill_student_topk import distill_student_topk
from .auxiliary.distill_topk import distill_topk
from .auxiliary.entropy import entropy
from .auxiliary.kdrl import kdrl
from .auxiliary.positive_nll import positive_nll
from .auxiliary.sdar import sdar
from .auxiliary.sft import sft
from .policy.a2po import a2po
from .policy.aspo import aspo
from .policy.bapo import bapo
from .policy.cispo import cispo
from .policy.clip_cov import clip_cov
from .policy.cpgd import cpgd
from .policy.decoupled_ppo import decoupled_ppo
from .policy.dppo_kl import dppo_kl
from .policy.dppo_tv import dppo_tv
from .policy.dro import dro
from .policy.dual_clip import dual_clip
from .policy.fipo import fipo
from .policy.flowrl import flowrl
from .policy.gmpo import gmpo
from .policy.grpo import grpo
from .policy.gspo import gspo
from .policy.gspo_token import gspo_token
from .policy.gvpo import gvpo
from .policy.high_entropy import high_entropy
from .policy.importance_sampling import importance_sampling
from .policy.iw_opd import iw_opd
from .policy.kl_cov import kl_cov
from .policy.loglinear_ppo import loglinear_ppo
from .policy.luspo import luspo
from .policy.opd import opd
from .policy.opmd import opmd
from .policy.opsm import opsm
from .policy.ppo_clip import ppo_clip
from .policy.prime_ipo import prime_ipo
from .policy.prime_ref_kl import prime_ref_kl
from .policy.prime_rl import prime_rl
from .policy.real import real
from .policy.rec import rec
from .policy.reinforce import reinforce
from .policy.rollout_is import rollout_is
from .policy.sapo import sapo
from .policy.sdpo import sdpo
from .policy.segment_ratio import segment_ratio
from .policy.sequence_clip import sequence_clip
from .policy.sppo import sppo
from .policy.tis import tis
from .policy.topr import topr
from .policy.two_sided_delta import two_sided_delta
from .policy.vespo import vespo
from .value.clipped_mse import clipped_mse
from .value.hl_gauss import hl_gauss
from .value.huber import huber
from .value.two_hot import two_hot

POLICY: tuple[Callable[..., Any], ...] = (
    ppo_clip, dual_clip, grpo, gspo, gspo_token, reinforce, importance_sampling,
    sequence_clip, two_sided_delta, luspo, gmpo, aspo, dppo_tv, dppo_kl, sapo, sppo, rec,
    cispo, rollout_is, tis, topr, dro, opmd, vespo, decoupled_ppo, loglinear_ppo, prime_rl, prime_ipo,
    clip_cov, kl_cov, cpgd, fipo, real, gvpo, flowrl, segment_ratio, high_entropy,
    opsm, a2po, opd, sdpo, iw_opd, prime_ref_kl, bapo,
)  # fmt: skip

AUXILIARY: tuple[Callable[..., Any], ...] = (
    sft,
    dft,
    positive_nll,
    chord,
    sdar,
    kdrl,
    entropy,
    distill,
    distill_topk,
    distill_student_topk,
)


@hookimpl
def lossary_components() -> Iterable[Callable[..., Any]]:
    """Enter by the door that plugins use."""
    return [*POLICY, clipped_mse, huber, two_hot, hl_gauss, *AUXILIARY]
