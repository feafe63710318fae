"""Importance-sampled policy gradient: the ratio corrects for the policy that sampled, and nothing is clipped away."""

from typing import Annotated, Literal

from ...numerics import bounded_log_ratio
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, Positive

Objective = Annotated[Literal["ratio", "score"], "the ratio itself is trained, or it is a fixed weight on the log-probability"]


@policy_loss(
    aliases=("is-pg",),
    scope="token",
    claims=("on-policy-gradient", "pulls-back"),
    deviates={"pulls-back@imp_ratio_cap=1.5": "Past the cap the ratio stands still and so does the token."},
    suits={"imp_ratio_cap": ">= 1"},
    compat={
        "skyrl": "`importance_sampling`; log_ratio_bound: null; token-sum.",
        "trinity-rft": "`importance_sampling`; log_ratio_bound: 20.",
        "tinker": "`importance_sampling`: old_log_prob holds the sampler's; token-sum.",
    },
)
def importance_sampling(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    objective: Objective = "ratio",
    imp_ratio_cap: Annotated[Positive | None, "the ratio counts as at most this; null: no cap"] = None,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Multiply the advantage by the ratio, unclipped: unlike ``ppo-clip`` a token pays however far it has moved.

    .. math:: L_t = -r_t A_t \ (\text{ratio}) \qquad\text{or}\qquad L_t = -\operatorname{sg}(r_t)\, A_t\, \ell_t \ (\text{score})

    ``[N]``, in units of the advantage (ratio) or of advantage times nats (score). Both have the gradient :math:`-r_t A_t`, but not the
    same value: never compare their curves. ``imp_ratio_cap`` puts :math:`\min(r_t, cap)` in the place of :math:`r_t`, and this is where
    they part: past the cap ``ratio`` has no gradient, while ``score`` keeps it with the weight :math:`cap` (truncated importance
    sampling). The policy that sampled is ``old_log_prob``.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    ratio = log_ratio.exp().clamp(max=imp_ratio_cap) if imp_ratio_cap is not None else log_ratio.exp()
    loss = -ratio * advantages if objective == "ratio" else -ratio.detach() * advantages * log_prob
    return loss, {"ppo_kl": Mean(-log_ratio.detach())}
