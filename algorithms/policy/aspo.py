"""ASPO: positive tokens weighed by the inverse ratio, so that what is still unlikely learns fastest."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import bounded_log_ratio, segment_quantile
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, Fraction, LogRatioBound, Positive


@policy_loss(
    aliases=("archer",),
    paper="arXiv:2510.06062",
    scope="sequence",
    claims=("on-policy-gradient", "pulls-back"),
    deviates={
        "own-side": "Its ranges are named by the entropy of a token, and count on both sides.",
        "ratio-upright": "Turning the ratio of good tokens upside down is its idea: the less likely one is still, the more it learns.",
    },
    suits={"low_entropy_clip": "<= high_entropy_clip"},
    compat={
        "Archer2.0": "its policy loss: the names are its own, though its high_entropy_mask marks the tokens of low entropy.",
    },
)
def aspo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    entropy: PerToken,
    sequences: Sequences,
    *,
    low_entropy_clip: Annotated[ClipBelow, "how far a ratio may move from 1 at a token of low entropy"] = 0.2,
    high_entropy_clip: Annotated[ClipBelow, "how far a ratio may move from 1 at a token of high entropy"] = 0.4,
    token_entropy_quantile: Annotated[Fraction, "quantile of a sequence's entropies above which a token counts as high in entropy"] = 0.8,
    negative_clip_ratio_c: Annotated[Positive, "the largest weight of a token with a negative advantage"] = 3.0,
    positive_clip_ratio_c: Annotated[Positive, "the largest inverse ratio that weighs a token with a positive advantage"] = 3.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip as ``ppo-clip`` does, wider where the policy is undecided, but turn the ratio of positive advantages upside down.

    .. math:: L_t = \begin{cases} -A_t\, \ell_t \min(1 / \operatorname{sg}(r_t),\, c_+) & A_t \ge 0,\ r_t \le 1 + \epsilon_t \\
        -A_t \max(r_t, 1 - \epsilon_t) & A_t < 0,\ r_t \le c_- \\ -A_t\, \ell_t\, c_- & A_t < 0,\ r_t > c_- \end{cases}

    ``[N]``; where the weight is below its cap the value is in units of the advantage (:math:`\ell_t` stands for a term with its
    gradient), else in advantage times nats. :math:`\epsilon_t` is ``high_entropy_clip`` above the sequence's entropy quantile. Past
    :math:`1 + \epsilon_t` a positive token has no gradient; both caps bound the weight and, unlike ``dual-clip``, keep the gradient.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    border = segment_quantile(entropy, token_entropy_quantile, sequences.index, sequences.lengths, sequences.offsets)
    undecided = entropy.detach() > sequences.spread(border)
    ratio, reach = log_ratio.exp(), torch.where(undecided, high_entropy_clip, low_entropy_clip).to(log_prob.dtype)
    gains, plain = advantages >= 0, ratio.detach()
    down = ratio.clamp(min=1 - reach)
    up = ratio.clamp(max=1 + reach)
    inverse = 1 / up.detach()
    capped_down, capped_up = down.detach() > negative_clip_ratio_c, inverse > positive_clip_ratio_c
    negative = torch.where(capped_down, negative_clip_ratio_c * log_prob, down)
    positive = torch.where(capped_up, positive_clip_ratio_c * log_prob, up * inverse * inverse)
    report = {
        "pg_clipfrac": Mean(torch.where(gains, plain > 1 + reach, plain < 1 - reach) & (advantages != 0)),
        "ppo_kl": Mean(-log_ratio.detach()),
        "pg_clipfrac_lower": Mean(~gains & capped_down),
        "pg_clipfrac_inverse": Mean(gains & capped_up),
    }
    return -advantages * torch.where(gains, positive, negative), report
