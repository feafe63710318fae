"""GRPO: PPO's surrogate without a critic, averaged sequence by sequence."""

from ...numerics import bounded_log_ratio, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    paper="arXiv:2402.03300",
    scope="token",
    suits={"aggregation": "seq-mean-token-mean"},
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "trl": "loss_type grpo: epsilon and epsilon_high (else epsilon); log_ratio_bound: null.",
        "liger-kernel": "loss_type grpo with epsilon_low and epsilon_high; log_ratio_bound: null.",
        "unsloth-zoo": "loss_type grpo with epsilon_low and epsilon_high; log_ratio_bound: null.",
    },
)
def grpo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``ppo-clip``, token for token: what makes it GRPO stands around it in the recipe.

    .. math:: L_t = \max\bigl(-r_t A_i,\; -\operatorname{clip}(r_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_i\bigr)

    ``[N]``, in units of the advantage. The advantage is the reward measured against its own group (estimator ``grpo``), a token weighs
    one over the length of its sequence (aggregation ``seq-mean-token-mean``), and the pull towards the reference is a KL term of its own
    (``k3``). DAPO takes ``token-mean`` and a wider upper clip instead; Dr.GRPO ``seq-mean-token-sum-norm`` and no division by the
    group's deviation. Equation 3 of the paper, with its sign turned and its KL term apart.
    """
    log_ratio = bounded_log_ratio(log_prob, old_log_prob, log_ratio_bound)
    return clipped_surrogate(log_ratio, advantages, clip_ratio_low, clip_ratio_high)
