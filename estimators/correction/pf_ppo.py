"""PF-PPO: answers whose reward says much count more, as often as they would be drawn if one drew anew."""

import math
from typing import Annotated, Literal

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import PerSequence, correction
from ...registry.hyper import NonNegative
from .levels import Weight

Method = Annotated[Literal["pow", "max_min", "max_random"], Field(description="which rewards say much")]


@correction(
    aliases=("pf_ppo_reweight",),
    paper="arXiv:2409.06957",
    scope="step",
    compat={
        "verl": "use `pf-ppo` with its reweight_method and weight_pow; verl draws the batch anew by these weights, with the same mean."
    },
)
def pf_ppo(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    reweight_method: Method = "pow",
    weight_pow: Annotated[NonNegative, "pow: the power of the reward's size that a sequence weighs by"] = 2.0,
    floor: Annotated[NonNegative, "added to every weight before they are normalised"] = 1e-8,
) -> Weight:
    r"""Weigh each sequence by its reward, with mean 1 over the step; no other correction here looks at rewards.

    .. math:: w_i = \frac{u_i}{\operatorname{mean}_{step} u}, \qquad u_i = |s_i|^p + f, \quad [s_i \in \{\max s, \min s\}] + f
        \quad\text{or}\quad 0.4\,[s_i = \max s] + 0.1\,[s_i \ne \max s] + f

    ``[N]``, without unit. Drawing :math:`B` sequences with chances in proportion to :math:`u_i` gives each :math:`w_i` copies on average:
    this is the same gradient in the mean, without the noise of the draw. Denominators stay those of the batch. Maximum and
    minimum are over all ranks. Where no reward says anything (all weights 0) nothing is learned. Nothing is dropped.
    """
    exact = rewards.to(accumulator(rewards))
    none = exact.new_full((1,), float("-inf"))  # a rank without a sequence has a maximum too
    top, bottom = sequences.ranks.max(torch.stack([torch.cat([exact, none]).amax(), torch.cat([-exact, none]).amax()])).unbind()
    power, small = torch.zeros_like(top), torch.full_like(top, math.log(floor) if floor else -math.inf)
    if reweight_method == "pow":
        largest = torch.maximum(top, bottom).clamp(min=torch.finfo(exact.dtype).tiny)
        power = (weight_pow * largest.log()).clamp(-1e300, 1e300)
        weight = (exact.abs() / largest).pow(weight_pow)
    elif reweight_method == "max_min":
        weight = ((exact == top) | (exact == -bottom)).to(exact.dtype)
    else:
        weight = torch.where(exact == top, 0.4, 0.1).to(exact.dtype)
    unit = torch.maximum(power, small)  # of the logarithms, for the weights themselves may overflow: only shares are asked for
    weight = weight * (power - unit).exp() + (small - unit).exp()
    share = safe_divide(weight, sequences.moments(weight)[1])
    return sequences.spread(share.to(rewards.dtype)), None
