"""VESPO: a smooth window over the ratio of whole sequences, found by a variational argument, in the place of a clip."""

import math
from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import score_loss, scored
from ...registry import ColumnError, Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, NonNegative, Positive

_FLOOR = math.log(1e-8)

RolloutIsThreshold = Annotated[
    Positive | None, "the largest ratio of old policy to sampler that a token adds; null: the sampler is not read"
]


@policy_loss(
    paper="arXiv:2602.10693",
    scope="sequence",
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"ratio-upright": "Its weight has its peak at k / lambda, for good sequences below 1, and falls from there on."},
    suits={"rollout_is_threshold": ">= 1"},
    compat={
        "trl": "loss_type vespo; with vLLM's importance sampling in mode token_truncate its clip_max is rollout_is_threshold.",
        "liger-kernel": "loss_type vespo.",
        "unsloth-zoo": "loss_type vespo.",
    },
)
def vespo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    rollout_log_prob: PerToken | None = None,
    *,
    vespo_k_pos: Annotated[NonNegative, "power of the ratio in the weight of an advantage that is not negative"] = 2.0,
    vespo_lambda_pos: Annotated[Positive, "decay by the ratio in the weight of an advantage that is not negative"] = 3.0,
    vespo_k_neg: Annotated[NonNegative, "power of the ratio in the weight of a negative advantage"] = 3.0,
    vespo_lambda_neg: Annotated[Positive, "decay by the ratio in the weight of a negative advantage"] = 2.0,
    rollout_is_threshold: RolloutIsThreshold = None,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Weigh a sequence by a gamma-shaped function of its ratio's product; ``gspo`` clips the geometric mean instead.

    .. math:: L_t = -\operatorname{sg}\bigl(e^{\lambda (1 - W_i)}\, W_i^k\bigr)\, A_t\, \ell_t, \qquad W_i = \prod_t r_t

    ``[N]``, in advantage times nats. The weight is 1 on policy, falls to 0 on both sides, and :math:`k, \lambda` differ by the sign of
    :math:`A_t`. With a ``rollout_is_threshold``, :math:`W_i` also takes in the ratios of old policy to sampler, each at most that;
    then the batch needs ``rollout_log_prob``, and a token that the sampler did not score has the ratio 1 there.
    """
    limit = 20.0 if log_ratio_bound is None else log_ratio_bound
    moved = (log_prob - old_log_prob).detach()
    total = sequences.sum(moved.clamp(-limit, limit))
    if rollout_is_threshold is not None:
        if rollout_log_prob is None:
            raise ColumnError("policy_loss 'vespo' with a rollout_is_threshold needs the column 'rollout_log_prob', which the batch lacks.")
        stale = old_log_prob - scored(rollout_log_prob, old_log_prob)
        total = total + sequences.sum(stale.clamp(_FLOOR, min(limit, math.log(rollout_is_threshold))))
    log_weight = sequences.spread(total.clamp(_FLOOR, limit))
    gains = advantages >= 0
    k = torch.where(gains, vespo_k_pos, vespo_k_neg).to(log_weight.dtype)
    decay = torch.where(gains, vespo_lambda_pos, vespo_lambda_neg).to(log_weight.dtype)
    weight = (k * log_weight - decay * torch.expm1(log_weight)).exp()
    return score_loss(weight, advantages, log_prob), {"vespo/phi": Mean(weight), "ppo_kl": Mean(-moved)}
