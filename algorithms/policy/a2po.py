"""A*-PO: regress the distance from the reference on how much better an answer is than the best policy's average."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import accumulator, safe_divide
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import Positive


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
    v_star: Annotated[float | None, "the optimal value of every prompt [reward]; null: from the rewards of its group"] = None,
) -> tuple[PerSequence, Report]:
    r"""Fit the sequence's log-ratio to the reference; ``gvpo`` measures against the group's mean, this against the optimal value.

    .. math:: L_i = \Bigl(\beta_2 \sum_t (\ell_t - \ell^{ref}_t) - (R_i - V^*)\Bigr)^2, \qquad
        V^* = \beta_1 \log \tfrac{1}{n} \sum_j e^{R_j / \beta_1}

    ``[S]``, in squared reward. The paper takes :math:`V^*` once, from answers of the reference; here it comes from the group's own,
    which is the same while the policy still is the reference, unless ``v_star`` gives one value for all prompts. No old policy.
    """
    live = (sequences.lengths > 0).to(accumulator(rewards))
    scaled = rewards.to(live.dtype) / beta1
    count = sequences.group_sum(live)
    centre = safe_divide(sequences.group_sum(scaled * live), count)
    raised = (scaled - sequences.group_spread(centre)).clamp(max=700).exp()  # in float64, where only a spread past 700 would overflow
    value = beta1 * (centre + safe_divide(sequences.group_sum(raised * live), count).clamp(min=1e-300).log())
    best = sequences.group_spread(value).to(log_prob.dtype) if v_star is None else v_star
    implicit = beta2 * sequences.sum(log_prob - ref_log_prob)
    some = sequences.lengths > 0
    return (implicit - (rewards - best)).square(), {"a2po/implicit_reward": Mean(implicit.detach(), some)}
