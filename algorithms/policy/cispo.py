"""CISPO: clip the weight of a token instead of the token, so that every token keeps a gradient."""

from typing import Annotated

import torch
from pydantic import Field

from ...numerics import bounded_log_ratio, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import ClipRange, LogRatioBound, Positive

LowerRange = Annotated[float | None, Field(ge=0, description="the weight is at least 1 - this; null: no lower bound")]
Cap = Annotated[Positive | None, Field(description="the largest weight itself, in the place of 1 + clip_ratio_high")]


@policy_loss(
    paper="arXiv:2506.13585",
    scope="token",
    suits={"imp_ratio_cap": ">= 1", "clip_ratio_low": ">= 1"},
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`cispo`: clip_ratio_low and clip_ratio_high as there, by default 0.2, which lifts small weights to 0.8.",
        "trl": "loss_type cispo: epsilon_high (else epsilon, 0.2) is imp_ratio_cap itself; log_ratio_bound: null.",
        "liger-kernel": "loss_type cispo: epsilon_high is imp_ratio_cap itself; log_ratio_bound: null.",
        "unsloth-zoo": "loss_type cispo: epsilon_high is imp_ratio_cap itself; log_ratio_bound: null.",
        "ms-swift": "epsilon_high is imp_ratio_cap itself; log_ratio_bound: null.",
        "skyrl": "`cispo`: cispo_eps_clip_low and cispo_eps_clip_high; with cispo_anchor rollout, old_log_prob holds the sampler's.",
        "slime": "`cispo`: eps_clip and eps_clip_high; log_ratio_bound: null.",
        "nemo-rl": "use_cispo: ratio_clip_min and ratio_clip_max; log_ratio_bound: null.",
        "roll": "`cispo`: cispo_epsilon_low and cispo_epsilon_high, practically fixed at 0.1; log_ratio_bound: null.",
        "trinity-rft": "`cispo`: clip_ratio_low: 1, clip_ratio_high: 0.28; enable_mask_clip is mask_clipped.",
        "tinker": "`cispo`: clip_high_threshold is imp_ratio_cap itself, 4 by default; token-sum.",
    },
)
def cispo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: LowerRange = None,
    clip_ratio_high: Annotated[ClipRange, "the weight is at most 1 + this"] = 4.0,
    imp_ratio_cap: Cap = None,
    mask_clipped: Annotated[bool, "whether tokens that the clip of PPO would silence are dropped"] = False,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Bound the ratio as a detached weight: where ``ppo-clip`` silences a rare token that became likely, this only holds its weight.

    .. math:: L_t = -\operatorname{sg}\bigl(\operatorname{clip}(r_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\bigr)\, A_t\, \ell_t

    ``[N]``, in advantage times nats. The paper and ScaleRL (arXiv:2510.13786) bound the weight from above only. Frameworks disagree on
    what the number means: verl, slime and NeMo write :math:`1 + \epsilon` (``clip_ratio_high``), TRL, Liger and tinker the largest
    weight itself (``imp_ratio_cap``). ``mask_clipped`` drops the tokens that ``ppo-clip`` would silence.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio = log_ratio.detach().exp()
    low = 0.0 if clip_ratio_low is None else 1 - clip_ratio_low
    high = 1 + clip_ratio_high if imp_ratio_cap is None else imp_ratio_cap
    weight = ratio.clamp(low, high)
    keep = ~torch.where(advantages > 0, ratio > high, (advantages < 0) & (ratio < low)) if mask_clipped else None
    return score_loss(weight, advantages, log_prob, keep), {"pg_clipfrac": Mean(ratio != weight), "ppo_kl": Mean(-log_ratio.detach())}
