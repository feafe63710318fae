"""DPPO with a binary KL: a token is left out when the divergence it shows, not its ratio, is too large."""

from typing import Annotated, Literal

import torch

from ...numerics import binary_kl, bounded_log_ratio, capped, score_loss
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, NonNegative, Positive

Objective = Annotated[Literal["score", "ratio"], "weight on the log-probability, or the ratio itself, which past its cap has no gradient"]


@policy_loss(
    aliases=("dppo-binary-kl",),
    paper="arXiv:2602.04879",
    scope="token",
    claims=("on-policy-gradient", "pulls-back"),
    suits={"clip_ratio_c": ">= 1"},
    compat={
        "verl": "`dppo_kl`: clip_ratio_low and clip_ratio_high are the thresholds; clip_ratio_c: 3 unless its actor says otherwise.",
        "skyrl": "`dppo` with dppo_type binary_kl: delta_low and delta_high; objective: ratio, clip_ratio_c: null; against the sampler if known.",
        "stable-rl": "`dppo_binary_kl`: clip_ratio_c: 10; old_log_prob holds the sampler's.",
    },
)
def dppo_kl(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: Annotated[NonNegative, "the largest binary KL of a fall with a negative advantage that still counts [nats]"] = 0.05,
    clip_ratio_high: Annotated[NonNegative, "the largest binary KL of a rise with a positive advantage that still counts [nats]"] = 0.05,
    clip_ratio_c: Annotated[Positive | None, "the ratio counts as at most this; null: no cap"] = 20.0,
    objective: Objective = "score",
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Drop a token like ``dppo-tv``, but judge its move in nats: near certainty the same shift of probability weighs far more.

    .. math:: L_t = -\operatorname{sg}(\min(r_t, c))\, A_t\, \ell_t \ \text{unless}\ D_t > \delta \ \text{and}\ A_t (\pi_t - \pi^{old}_t) > 0,
        \qquad D_t = \operatorname{KL}(\mathrm{Bern}(\pi^{old}_t) \,\|\, \mathrm{Bern}(\pi_t))

    ``[N]``, in advantage times nats; ``objective: ratio`` as in ``dppo-tv``. :math:`\delta` is ``clip_ratio_high`` for positive and
    ``clip_ratio_low`` for negative advantages, in nats. The policy that sampled is ``old_log_prob``.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    moved, far = (log_prob - old_log_prob).detach(), binary_kl(old_log_prob, log_prob)
    up, down = (moved > 0) & (far > clip_ratio_high), (advantages < 0) & (moved < 0) & (far > clip_ratio_low)
    keep = ~torch.where(advantages > 0, up, down)
    report = {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-log_ratio.detach())}
    if objective == "score":
        return score_loss(capped(log_ratio.exp(), clip_ratio_c), advantages, log_prob, keep), report
    return -capped(torch.where(keep, log_ratio, 0.0).exp(), clip_ratio_c) * torch.where(keep, advantages, 0.0), report
