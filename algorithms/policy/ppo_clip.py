"""PPO-clip: a token whose ratio has already moved far enough its own way stops paying."""

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    aliases=("regular",),
    paper="arXiv:1707.06347",
    scope="token",
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`vanilla` with a clip_ratio_c that never binds; log_ratio_bound: 20.",
        "trl": "loss_type bnpo, dapo or dr_grpo: epsilon and epsilon_high (else epsilon); log_ratio_bound: null.",
        "liger-kernel": "the same loss_type with epsilon_low and epsilon_high; log_ratio_bound: null.",
        "unsloth-zoo": "the same loss_type with epsilon_low and epsilon_high; log_ratio_bound: null.",
        "skyrl": "`regular`: eps_clip_low and eps_clip_high; log_ratio_bound: 20.",
        "areal": "its PPO loss with c_clip null: eps_clip, and eps_clip_higher where given; log_ratio_bound: null.",
        "slime": "its policy loss without eps_clip_c: eps_clip and eps_clip_high; log_ratio_bound: null.",
        "openrlhf": "`ppo` without dual_clip: clip_eps_low and clip_eps_high; log_ratio_bound: 20.",
        "nemo-rl": "ClippedPGLossFn without ratio_clip_c: ratio_clip_min and ratio_clip_max; log_ratio_bound: null.",
        "roll": "`ppo` with dual_clip_loss off: pg_clip, or pg_clip_low and pg_clip_high with use_pg_clip_range; log_ratio_bound: null.",
        "tinker": "`ppo`: 1 - clip_low_threshold and clip_high_threshold - 1; old_log_prob holds the sampler's; token-sum.",
    },
)
def ppo_clip(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip each token's ratio; unlike ``dual-clip`` a negative advantage is never capped, so one runaway ratio can dominate the step.

    .. math:: L_t = \max\bigl(-r_t A_t,\; -\operatorname{clip}(r_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr),
        \qquad r_t = e^{\ell_t - \ell^{old}_t}

    ``[N]``, in units of the advantage. The gradient is 0 past the bound that the sign of :math:`A_t` makes matter, and flows exactly at
    it. ``clip_ratio_high`` above ``clip_ratio_low`` is DAPO's clip-higher. Equation 7 of the paper, with its sign turned.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    return clipped_surrogate(log_ratio, advantages, clip_ratio_low, clip_ratio_high)
