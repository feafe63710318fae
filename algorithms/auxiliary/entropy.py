"""Entropy bonus: keep the policy from making up its mind too early."""

from ...registry import PerToken, auxiliary_loss


@auxiliary_loss(
    scope="token",
    compat={
        "verl": "entropy_coeff is coef, with the aggregation of the policy loss.",
        "trl": "entropy_coef is coef, with token-mean whatever the loss_type.",
        "openrlhf": "entropy_coef is coef, with token-mean whatever the policy loss.",
        "skyrl": "use_entropy_loss with its coefficient as coef, 0.01 by default.",
    },
)
def entropy(entropy: PerToken) -> PerToken:
    r"""Return minus the entropy of each token's distribution, so that a positive coefficient is a bonus for staying undecided.

    .. math:: L_t = -H_t

    ``[N]``, in nats.
    """
    return -entropy
