"""REINFORCE: make what turned out well more likely, in proportion."""

from ...registry import PerToken, policy_loss


@policy_loss(
    aliases=("gpg",),
    paper="doi:10.1007/BF00992696",
    scope="token",
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`gpg`.",
        "nemo-rl": "disable_ppo_ratio.",
        "roll": "pg_variant `vanilla`.",
    },
)
def reinforce(log_prob: PerToken, advantages: PerToken) -> PerToken:
    r"""Weigh each token's log-probability by its advantage, with no ratio: unlike ``importance-sampling`` right only for fresh samples.

    .. math:: L_t = -A_t\, \ell_t

    ``[N]``, in reward times nats. The value says nothing about progress (it follows the entropy); only the gradient
    :math:`-A_t` does. After the first step on the same samples it is biased.
    """
    return -advantages * log_prob
