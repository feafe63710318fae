"""PPO's value loss: a critic that has moved far from its old self is not rewarded for moving further."""

from typing import Annotated

import torch

from ...registry import Mean, PerToken, Report, value_loss
from ...registry.hyper import Positive

CliprangeValue = Annotated[Positive | None, "how far a value may move from its old one before it is clipped [reward]; null: never"]


@value_loss(
    scope="token",
    claims=("non-negative", "zero-at-equality"),
    compat={
        "verl": "cliprange_value as there, with the actor's aggregation modes.",
        "openrlhf": "value_clip is cliprange_value, and null there is null here.",
        "skyrl": "value_clip is cliprange_value; seq-mean-token-mean with all rows in the mean.",
        "nemo-rl": "MseValueLossFn: cliprange is cliprange_value, null by default.",
        "areal": "loss_fn mse: value_eps_clip is cliprange_value.",
        "slime": "its value loss has no half: twice the coef.",
        "roll": "value_clip is cliprange_value, null by default.",
    },
)
def clipped_mse(
    values: PerToken, old_values: PerToken, returns: PerToken, *, cliprange_value: CliprangeValue = 0.5
) -> tuple[PerToken, Report]:
    r"""Return half the squared error, or that of the value clipped to :math:`\pm c` around the old one where it is larger.

    .. math:: L_t = \tfrac12 \max\bigl((v_t - R_t)^2,\; (\operatorname{clip}(v_t, v^{old}_t - c, v^{old}_t + c) - R_t)^2\bigr)

    ``[N]``, in reward squared; ``cliprange_value`` is in units of the reward, and null is the plain error. The gradient is 0 only where
    the clipped error is the larger one (``vf_clipfrac``); merely being out of range (``vf_out_of_range``) still trains.
    """
    error = (values - returns).square()
    report = {"vpred_mean": Mean(values.detach())}
    if cliprange_value is None:
        return 0.5 * error, report
    clipped = (values.clamp(old_values - cliprange_value, old_values + cliprange_value) - returns).square()
    worse = clipped > error  # a selection and not torch.maximum, which halves the gradient at ties
    report |= {"vf_clipfrac": Mean(worse), "vf_out_of_range": Mean((values - old_values).detach().abs() > cliprange_value)}
    return 0.5 * torch.where(worse, clipped, error), report
