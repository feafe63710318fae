"""GVPO: fit each answer's log-ratio, measured against its group, to its advantage, so that the optimum is known in closed form."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import Positive


@policy_loss(
    paper="arXiv:2504.19599",
    scope="group",
    suits={"aggregation": "seq-mean-token-mean"},
    compat={
        "verl-recipe": "`gvpo`: beta as there; the recipe adds prompts up and leaves their number to its caller.",
    },
)
def gvpo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    beta: Annotated[Positive, "reward per nat: what a sequence's summed log-ratio is multiplied by"] = 0.1,
) -> tuple[PerSequence, Report]:
    r"""Regress on the advantage inside each group; ``dro`` regresses each token alone and does not know the others.

    .. math:: L_i = \tfrac12 \frac{n}{n - 1} \bigl(R_i - \operatorname{sg}(\bar R_g) - \bar A_i\bigr)^2, \qquad
        R_i = \beta \sum_t (\ell_t - \ell^{old}_t)

    ``[S]``, in squared reward. :math:`n` counts the group's sequences that have a token, so the mean over a group is the sum over
    :math:`n - 1`, as in the paper; a group of one has nothing to compare and the loss 0. :math:`\bar A_i` is the sequence's mean.
    """
    implicit = beta * sequences.sum(log_prob - old_log_prob)
    live = (sequences.lengths > 0).to(implicit.dtype)
    count = sequences.group_sum(live)
    mean = safe_divide(sequences.group_sum(implicit.detach()), count)  # an empty sequence adds 0
    share = sequences.group_spread(torch.where(count > 1, count, 0.0) / (count - 1).clamp(min=1))
    away = implicit - sequences.group_spread(mean) - sequences.mean(advantages)
    return 0.5 * share * away.square(), {"gvpo/implicit_reward": Mean(implicit.detach(), sequences.lengths > 0)}
