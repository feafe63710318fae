"""Entropy bonus: keep the policy from making up its mind too early."""

from ...registry import Mean, PerToken, Report, auxiliary_loss


@auxiliary_loss(scope="token")
def entropy(entropy: PerToken) -> tuple[PerToken, Report]:
    r"""Return minus the entropy of each token's distribution, so that a positive coefficient is a bonus for staying undecided.

    .. math:: L_t = -H_t

    ``[N]``, in nats.
    """
    return -entropy, {"entropy": Mean(entropy.detach())}
