"""CHORD: demonstrations beside the policy's own samples, weighed so that they teach without tearing down what is there."""

import torch

from ...registry import Mean, PerToken, Report, auxiliary_loss


@auxiliary_loss(
    aliases=("mix",),
    scope="token",
    claims=("non-negative",),
    compat={"trinity": "the MIX losses: mu is coef and 1 - mu the policy loss's own factor; phi: true is the weight p (1 - p)."},
)
def chord(log_prob: PerToken, demonstration: PerToken, *, phi: bool = True) -> tuple[PerToken, Report]:
    r"""Return the loss of ``sft`` for tokens of demonstrations, weighed by how undecided the policy is about them, and 0 for others.

    .. math:: L_t = -\operatorname{sg}(\phi_t)\, \ell_t\, [t \in D], \qquad \phi_t = p_t (1 - p_t), \quad p_t = e^{\ell_t}

    ``[N]``, in nats. Tokens that are known already and tokens that are out of reach hardly count; ``dft`` only spares the latter.
    ``phi: false`` is the plain likelihood. The mixture is :math:`(1 - \mu) L^{policy} + \mu L^{chord}`: the coefficient is :math:`\mu`.
    """
    shown = demonstration > 0.5
    plain = log_prob.detach().clamp(max=0.0)
    weight = plain.exp() * -torch.expm1(plain) if phi else torch.ones_like(plain)
    return -torch.where(shown, weight, 0.0) * torch.where(shown, log_prob, 0.0), {
        "demonstration_frac": Mean(shown),
        "chord/phi": Mean(weight, shown),
    }
