"""CHORD: demonstrations beside the policy's own samples, weighed so that they teach without tearing down what is there."""

from typing import Annotated

import torch

from ...registry import Mean, PerToken, Report, auxiliary_loss


@auxiliary_loss(
    aliases=("mix",),
    paper="arXiv:2508.11408",
    scope="token",
    claims=("non-negative",),
    compat={
        "ms-swift": "CHORD: mu is coef and 1 - mu multiplies the policy loss; phi as there.",
        "trinity-rft": "MIX and CHORD: mu is coef and 1 - mu multiplies the policy loss; phi: false for MIX.",
    },
)
def chord(
    log_prob: PerToken,
    demonstration: PerToken,
    *,
    phi: Annotated[bool, "whether tokens weigh by p (1 - p), most where undecided; false: plain likelihood"] = True,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``sft`` for tokens of demonstrations, weighed by how undecided the policy is about them, and 0 for others.

    .. math:: L_t = -\operatorname{sg}(\phi_t)\, \ell_t\, [t \in D], \qquad \phi_t = p_t (1 - p_t), \quad p_t = e^{\ell_t}

    ``[N]``, in nats. Tokens that are known already and tokens that are out of reach hardly count; ``dft`` only spares the latter.
    ``phi: false`` is the plain likelihood. The mixture is :math:`(1 - \mu) L^{policy} + \mu L^{chord}`: the coefficient is :math:`\mu`.
    The policy loss itself knows of no demonstrations: give their tokens the advantage 0.
    """
    shown = demonstration > 0.5
    plain = log_prob.detach().clamp(max=0.0)
    weight = plain.exp() * -torch.expm1(plain) if phi else torch.ones_like(plain)
    return -torch.where(shown, weight, 0.0) * torch.where(shown, log_prob, 0.0), {
        "demonstration_frac": Mean(shown),
        "chord/phi": Mean(weight, shown),
    }
