"""Entropy bonus: keep the policy from making up its mind too early."""

from ...registry import PerToken, auxiliary_loss


@auxiliary_loss(scope="token")
def entropy(entropy: PerToken) -> PerToken:
    r"""Return minus the entropy of each token's distribution, so that a positive coefficient is a bonus for staying undecided.

    .. math:: L_t = -H_t

    ``[N]``, in nats.
    """
    return -entropy
