"""Dynamic fine-tuning: learn what is already half known first."""

from ...registry import PerToken, auxiliary_loss


@auxiliary_loss(
    paper="arXiv:2508.05629",
    scope="token",
    claims=("non-negative",),
    compat={
        "trl": "SFT with loss_type dft.",
    },
)
def dft(log_prob: PerToken) -> PerToken:
    r"""Weigh the loss of ``sft`` with the token's own probability, whose inverse in the gradient of the logarithm it cancels.

    .. math:: L_t = -\operatorname{sg}(e^{\ell_t})\, \ell_t

    ``[N]``, in nats. The weight has no gradient; a token thought impossible teaches nothing.
    """
    return -log_prob.detach().clamp(max=0.0).exp() * log_prob
