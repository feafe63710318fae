"""sPPO: the log-ratio in the place of the ratio, within a band."""

import math
from typing import Annotated

import torch

from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Positive


@policy_loss(
    scope="token",
    claims=("on-policy-gradient",),
    compat={
        "trinity-rft": "`sppo`: epsilon as there.",
    },
)
def sppo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    *,
    epsilon: Annotated[Positive, "a token pays while its log-ratio is within +- log(1 + this)"] = 0.3,
) -> tuple[PerToken, Report]:
    r"""Pay the log-ratio while the ratio is inside a band; outside it, unlike ``ppo-clip``, a token is silent whatever its advantage.

    .. math:: L_t = -A_t\, d_t \ \text{while}\ |d_t| \le \log(1 + \epsilon), \qquad d_t = \ell_t - \ell^{old}_t

    ``[N]``, in advantage times nats. The gradient inside the band is :math:`-A_t`, without a weight. From Trinity-RFT.
    """
    log_ratio = log_prob - old_log_prob
    keep = log_ratio.detach().abs() <= math.log1p(epsilon)
    report = {"pg_clipfrac": Mean(~keep), "ppo_kl": Mean(-log_ratio.detach())}
    return -advantages * torch.where(keep, log_ratio, 0.0), report
