"""TOPR: learn from good samples however old they are, and from bad ones only as far as the policy would still produce them."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import bounded, score_loss
from ...registry import ColumnError, Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, NonNegative, Positive

PositiveBy = Annotated[Literal["advantage", "reward"], "what makes a sample a good one: a positive advantage, or a reward above 0"]

ImportanceSamplingLevel = Annotated[Literal["sequence", "token"], "whose ratio weighs: the product over the sequence, or the token's own"]


@policy_loss(
    paper="arXiv:2503.14286",
    scope="sequence",
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"on-policy-gradient@other-numbers": "The weights of good and bad samples multiply the gradient."},
    suits={"imp_ratio_cap": ">= 1"},
    compat={
        "roll": "`topr`: importance_sampling_level: token, positive_by: reward, log_ratio_bound: null; its weights have the same names.",
        "trinity-rft": "`topr`: importance_sampling_level: token, positive_by: advantage, log_ratio_bound: null.",
    },
)
def topr(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    rewards: PerSequence | None = None,
    *,
    positive_by: PositiveBy = "advantage",
    importance_sampling_level: ImportanceSamplingLevel = "sequence",
    topr_positive_weight: Annotated[NonNegative, "weight of good samples"] = 1.0,
    topr_negative_weight: Annotated[NonNegative, "what the capped ratio of bad samples is multiplied by"] = 1.0,
    imp_ratio_cap: Annotated[Positive, "the largest ratio that weighs a bad sample"] = 1.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Leave positive samples without a weight and taper negative ones; ``tis`` truncates both alike.

    .. math:: L_t = \begin{cases} -A_t\, \ell_t & A_t > 0 \\ -\operatorname{sg}(\min(r, 1))\, A_t\, \ell_t & A_t \le 0 \end{cases}

    ``[N]``, in advantage times nats. :math:`r` is the ratio of the whole sequence, the product of its tokens', as in the paper; at
    level ``token`` it is the token's own, which is what Trinity-RFT and ROLL compute. ``positive_by: reward`` tells good samples by a
    reward above 0 (paper, ROLL) instead of the advantage (Trinity-RFT).
    """
    positive = advantages > 0
    if positive_by == "reward":
        if rewards is None:
            raise ColumnError("policy_loss 'topr' with positive_by: reward needs the column 'rewards', which the batch does not bring.")
        positive = sequences.spread(rewards > 0)
    log_ratio = (log_prob - old_log_prob).detach()
    if importance_sampling_level == "sequence":
        log_ratio = sequences.spread(sequences.sum(log_ratio))
    ratio = bounded(log_ratio, log_ratio_bound).exp()
    taper = topr_negative_weight * ratio.clamp(max=imp_ratio_cap)
    weight = torch.where(positive, topr_positive_weight, taper)
    report = {"pg_clipfrac": Mean(~positive & (ratio > imp_ratio_cap)), "ppo_kl": Mean((old_log_prob - log_prob).detach())}
    return score_loss(weight, advantages, log_prob), report
