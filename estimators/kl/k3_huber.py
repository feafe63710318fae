"""k3-huber: k3 whose pull is bounded, but never ends."""

import math
from typing import Annotated

import torch
from pydantic import Field

from ...numerics import bounded, sloped
from ...registry import PerToken, kl_estimator

Delta = Annotated[
    float,
    Field(
        gt=1, le=1e3, description="the largest pull on a token that the policy has lost; from about ln(delta) nats on the rest is straight"
    ),
]


@kl_estimator(
    scope="token", claims=("zero-at-equality", "non-negative"), deviates={"referenced": "No paper or framework is known that has it."}
)
def k3_huber(log_prob: PerToken, ref_log_prob: PerToken, *, delta: Delta = 10.0) -> PerToken:
    r"""Return an estimate that is ``k3`` near equality and grows straight far away, so that it needs neither a bound nor a cap.

    .. math:: k = \frac{\delta^2}{\delta - 1} \ln\Bigl(\tfrac{1}{\delta} + \tfrac{\delta - 1}{\delta} e^{d}\Bigr) - \delta d, \qquad
        \frac{\partial k}{\partial \ell} = \frac{e^{d} - 1}{\tfrac{1}{\delta} + \tfrac{\delta - 1}{\delta} e^{d}}, \qquad
        d = \ell - \ell^{ref}

    ``[N]``, in nats. The gradient rises from :math:`-\delta` to :math:`\delta / (\delta - 1)` and is 0 only at equality, where the value
    is :math:`d^2 / 2` as for all its neighbours: a token that has drifted is always pulled back, which a cap of ``k3`` ends beyond 2.6
    nats. On policy its expectation is the gradient of :math:`\bigl(\tfrac{\delta}{\delta - 1}\bigr)^2` times the KL of the
    reference from the mixture :math:`\tfrac{\delta - 1}{\delta} \pi + \tfrac1\delta \pi^{ref}`, which is never infinite. ``k3`` is the
    limit of a large ``delta``; 2 is symmetric, :math:`4 \ln \cosh (d / 2)`.

    ``delta`` has no unit: it is nats of the estimate per nat of the log-ratio. A log-ratio past 87 nats (in float32) counts as that far; a
    token that the policy cannot say has no gradient.
    """
    d = bounded((log_prob - ref_log_prob).detach(), None)
    a = 1 / delta
    value = delta**2 / (delta - 1) * torch.logaddexp(d + math.log1p(-a), torch.full_like(d, math.log(a))) - delta * d
    near = delta**2 / (delta - 1) * torch.log1p((1 - a) * torch.expm1(d.clamp(-1, 1))) - delta * d
    value = torch.where(d.abs() < 1, near, value).clamp(min=0)
    small = (-d.abs()).exp()  # of e^d and e^-d the one that does not overflow
    slope = -torch.expm1(-d.abs()) / torch.where(d > 0, (1 - a) + a * small, -((1 - a) * small + a))
    return sloped(value, slope, log_prob)
