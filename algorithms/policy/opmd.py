"""OPMD: mirror descent that needs no old policy, since its regulariser folds into the step."""

from typing import Annotated

from ...registry import PerToken, policy_loss
from ...registry.hyper import NonNegative


@policy_loss(
    claims=("pulls-back",),
    paper="arXiv:2505.17826",
    scope="token",
    compat={
        "trinity-rft": "`opmd`: tau as there.",
    },
)
def opmd(
    log_prob: PerToken,
    advantages: PerToken,
    *,
    tau: Annotated[NonNegative, "strength of the pull to the old policy: the loss is divided by 1 + this"] = 1.0,
) -> PerToken:
    r"""Return ``reinforce`` divided by :math:`1 + \tau`: the stronger the pull to the old policy, the shorter the step.

    .. math:: L_t = -\frac{A_t\, \ell_t}{1 + \tau}

    ``[N]``, in reward times nats. Trinity-RFT's simple form; ``dro`` keeps the quadratic term that this one folds away.
    """
    return -advantages * log_prob / (1 + tau)
