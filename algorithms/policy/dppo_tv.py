"""DPPO with total variation: a token is left out when its probability, not its ratio, has moved too far."""

from typing import Annotated, Literal

import torch

from ...numerics import bounded_log_ratio, capped, probability_shift, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Fraction, LogRatioBound, Positive

ClipRatioLow = Annotated[Fraction, "how far a probability may fall where the advantage is negative before the token is left out"]

ClipRatioHigh = Annotated[Fraction, "how far a probability may rise where the advantage is positive before the token is left out"]

Objective = Annotated[Literal["score", "ratio"], "weight on the log-probability, or the ratio itself, which past its cap has no gradient"]


@policy_loss(
    aliases=("dppo", "dppo-binary-tv"),
    paper="arXiv:2602.04879",
    scope="token",
    claims=("on-policy-gradient", "pulls-back"),
    suits={"clip_ratio_c": ">= 1"},
    compat={
        "verl": "`dppo_tv`: clip_ratio_low and clip_ratio_high are the thresholds; clip_ratio_c: 3 unless its actor says otherwise.",
        "skyrl": "`dppo` with dppo_type binary_tv: delta_low and delta_high; objective: ratio, clip_ratio_c: null; against the sampler if known.",
        "stable-rl": "`dppo_binary_tv`: clip_ratio_c: 10; old_log_prob holds the sampler's.",
    },
)
def dppo_tv(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipRatioLow = 0.2,
    clip_ratio_high: ClipRatioHigh = 0.2,
    clip_ratio_c: Annotated[Positive | None, "the ratio counts as at most this; null: no cap"] = 20.0,
    objective: Objective = "score",
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Drop a token whose probability moved too far its own way; ``ppo-clip`` stops rare tokens at shifts that hardly matter.

    .. math:: L_t = -\operatorname{sg}(\min(r_t, c))\, A_t\, \ell_t \ \text{unless}\
        (A_t > 0,\ \pi_t - \pi^{old}_t > \delta_{high}) \ \text{or}\ (A_t < 0,\ \pi^{old}_t - \pi_t > \delta_{low})

    ``[N]``, in advantage times nats; ``objective: ratio`` is :math:`-\min(r_t, c)\, A_t` instead, in units of the advantage, with the
    same gradient below the cap and none above. The thresholds are probabilities. The policy that sampled is ``old_log_prob``.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    shift = probability_shift(log_prob, old_log_prob)
    keep = ~torch.where(advantages > 0, shift > clip_ratio_high, (advantages < 0) & (shift < -clip_ratio_low))
    report = {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-log_ratio.detach())}
    if objective == "score":
        return score_loss(capped(log_ratio.exp(), clip_ratio_c), advantages, log_prob, keep), report
    return -capped(torch.where(keep, log_ratio, 0.0).exp(), clip_ratio_c) * torch.where(keep, advantages, 0.0), report
