"""Supervised fine-tuning: the tokens themselves are right, so make them likely."""

from ...registry import PerToken, auxiliary_loss


@auxiliary_loss(
    aliases=("nll", "ce"),
    scope="token",
    claims=("non-negative",),
    compat={
        "skyrl": "`cross_entropy`; token-sum.",
        "prime-rl": "`ce`, over its own count of tokens.",
        "nemo-rl": "NLLLossFn.",
        "openrlhf": "SFTLoss.",
        "slime": "its SFT loss.",
        "verl": "its SFT loss.",
    },
)
def sft(log_prob: PerToken) -> PerToken:
    r"""Return each token's negative log-likelihood: ``reinforce`` with every advantage 1.

    .. math:: L_t = -\ell_t

    ``[N]``, in nats.
    """
    return -log_prob
