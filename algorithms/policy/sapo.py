"""SAPO: a smooth gate in the place of the clip, so that a token fades out instead of falling silent."""

from typing import Annotated, Literal

import torch

from ...batch import Sequences
from ...numerics import bounded
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, Positive

ImportanceSamplingLevel = Annotated[
    Literal["token", "sequence"], "whose ratio is gated: the token's own, or the geometric mean over its sequence"
]


@policy_loss(
    paper="arXiv:2511.20347",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean"},
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`sapo`: tau_pos and tau_neg; log_ratio_bound: 20; seq-mean-token-mean is built in there.",
        "trl": "loss_type sapo; log_ratio_bound: null; all rows count.",
        "liger-kernel": "loss_type sapo, at token level only; log_ratio_bound: null; all rows count.",
        "unsloth-zoo": "loss_type sapo; log_ratio_bound: null; all rows count.",
        "skyrl": "`sapo` with loss_reduction sequence_mean; log_ratio_bound: 20.",
        "areal": "use_sapo_loss: at level sequence with the mean of each sequence's advantages; log_ratio_bound: null.",
        "trinity-rft": "no setting: its `sapo` detaches the gate, so that the weight rises with the ratio.",
    },
)
def sapo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    tau_pos: Annotated[Positive, "how soon a token with a positive advantage fades as its ratio leaves 1"] = 1.0,
    tau_neg: Annotated[Positive, "how soon a token with any other advantage fades as its ratio leaves 1"] = 1.05,
    importance_sampling_level: ImportanceSamplingLevel = "token",
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Pass each ratio through a sigmoid around 1; where ``ppo-clip`` has an edge, the weight falls off to both sides.

    .. math:: L_t = -\tfrac{4}{\tau}\, \sigma\bigl(\tau (r_t - 1)\bigr)\, A_t, \qquad
        \tau = \tau_{pos} \text{ for } A_t > 0, \text{ else } \tau_{neg}

    ``[N]``, in units of the advantage, but with the value :math:`-2 A_t / \tau` on policy. The gradient there is :math:`-A_t`; a
    negative advantage fades sooner (:math:`\tau_{neg} > \tau_{pos}`), since it spreads probability over everything else. At level
    ``sequence`` the ratio is ``gspo``'s.
    """
    log_ratio = log_prob - old_log_prob
    if importance_sampling_level == "sequence":
        log_ratio = sequences.spread(sequences.mean(log_ratio))
    log_ratio = bounded(log_ratio, log_ratio_bound)
    tau = torch.where(advantages > 0, tau_pos, tau_neg).to(log_prob.dtype)
    gate = (4 / tau) * torch.sigmoid(tau * torch.expm1(log_ratio))
    return -gate * advantages, {"ppo_kl": Mean(-log_ratio.detach())}
