"""A*-PO: regress the distance from the reference on how much better an answer is than the best policy's average."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import Positive, Real


@policy_loss(
    aliases=("a-star-po",),
    paper="arXiv:2505.20686",
    scope="group",
    suits={"aggregation": "seq-mean-token-mean"},
    compat={
        "trl": "its A2PO trainer: beta1 and beta2 as there, the value of each prompt as v_star.",
    },
)
def a2po(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    rewards: PerSequence,
    sequences: Sequences,
    *,
    beta1: Annotated[Positive, "temperature of the soft maximum over the group's rewards [reward]"] = 0.5,
    beta2: Annotated[Positive, "reward per nat: what a sequence's summed log-ratio is multiplied by"] = 1e-3,
    v_star: Annotated[Real | None, "the optimal value of every prompt [reward]; null: from the rewards of its group"] = None,
) -> tuple[PerSequence, Report]:
    r"""Fit the sequence's log-ratio to the reference; ``gvpo`` measures against the group's mean, this against the optimal value.

    .. math:: L_i = \Bigl(\beta_2 \sum_t (\ell_t - \ell^{ref}_t) - (R_i - V^*)\Bigr)^2, \qquad
        V^* = \beta_1 \log \tfrac{1}{n} \sum_j e^{R_j / \beta_1}

    ``[S]``, in squared reward. The paper takes :math:`V^*` once, from answers of the reference; here it comes from the group's own,
    which is the same while the policy still is the reference, unless ``v_star`` gives one value for all prompts. No old policy.
    """
    some, wide = sequences.lengths > 0, rewards.to(accumulator(rewards))
    top = sequences.group_spread(sequences.group_max(torch.where(some, wide, float("-inf"))))
    below = torch.where(some, wide - top, 0.0) / beta1
    raised = safe_divide(sequences.group_sum(below.expm1()), sequences.group_sum(some.to(wide.dtype)))  # expm1: a large beta makes it small
    value = torch.where(some, top + beta1 * sequences.group_spread(raised).log1p(), 0.0)
    best = value.to(log_prob.dtype) if v_star is None else v_star
    implicit = beta2 * sequences.sum(log_prob - ref_log_prob)
    return (implicit - (rewards - best)).square(), {"a2po/implicit_reward": Mean(implicit.detach(), some)}
