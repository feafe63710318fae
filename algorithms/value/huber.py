"""Huber's value loss: squared near the target and straight far from it, so that one wild return does not own the step."""

from typing import Annotated

import torch
from torch import Tensor

from ...registry import Mean, PerToken, Report, value_loss
from ...registry.hyper import Positive

CliprangeValue = Annotated[Positive | None, "how far a value may move from its old one before it is clipped [reward]; null: never"]


@value_loss(
    aliases=("value_huber", "clipped_huber"),
    scope="token",
    claims=("non-negative", "zero-at-equality"),
    compat={
        "areal": "loss_fn huber: huber_delta is delta, value_eps_clip is cliprange_value.",
    },
)
def huber(
    values: PerToken,
    old_values: PerToken,
    returns: PerToken,
    *,
    delta: Annotated[Positive, "error beyond which the loss grows only straight [reward]"] = 10.0,
    cliprange_value: CliprangeValue = 0.5,
) -> tuple[PerToken, Report]:
    r"""Run ``clipped-mse`` with an error that grows only straight beyond :math:`\delta`, so that its gradient never exceeds it.

    .. math:: L_t = \max\bigl(h(v_t - R_t),\; h(\operatorname{clip}(v_t, v^{old}_t - c, v^{old}_t + c) - R_t)\bigr), \qquad
        h(d) = \tfrac12 \min(|d|, \delta)^2 + \delta \max(|d| - \delta,\, 0)

    ``[N]``, in reward squared; ``delta`` and ``cliprange_value`` are in units of the reward, and null does not clip. ``vf_clipfrac`` counts
    where the clipped error is the larger one, which is where the gradient is 0.
    """

    def error(apart: Tensor) -> Tensor:
        near = apart.clamp(-delta, delta)
        return near * (apart - 0.5 * near)  # inside: half the square; outside: delta (|d| - delta / 2)

    plain = error(values - returns)
    report = {"vpred_mean": Mean(values.detach())}
    if cliprange_value is None:
        return plain, report
    clipped = error(values.clamp(old_values - cliprange_value, old_values + cliprange_value) - returns)
    worse = clipped > plain
    report |= {"vf_clipfrac": Mean(worse), "vf_out_of_range": Mean((values - old_values).detach().abs() > cliprange_value)}
    return torch.where(worse, clipped, plain), report
