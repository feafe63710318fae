"""FlowRL: match the distribution of rewards instead of chasing the largest one."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import bounded
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, NonNegative, Positive


@policy_loss(
    paper="arXiv:2509.15207",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean", "imp_ratio_cap": ">= 1"},
    compat={
        "verl-recipe": "FlowRL: flowrl_beta_coef as there, imp_ratio_cap: 10; log_ratio_bound: null; all rows count.",
    },
)
def flowrl(
    log_prob: PerToken,
    old_log_prob: PerToken,
    ref_log_prob: PerToken,
    advantages: PerToken,
    log_z: PerSequence,
    sequences: Sequences,
    *,
    flowrl_beta_coef: Annotated[NonNegative, "what the reward is multiplied by [nats per reward]"] = 15.0,
    imp_ratio_cap: Annotated[Positive, "the largest weight of a sequence, the product of its ratios"] = 10.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerSequence, Report]:
    r"""Close the gap between the policy and the reference tilted by the reward; ``gvpo`` cancels the partition function, this learns it.

    .. math:: L_i = \operatorname{sg}\bigl(\min(\textstyle\prod_t r_t,\, c)\bigr) \Bigl(\log Z_i + \tfrac{1}{n_i} \sum_t (\ell_t -
        \ell^{ref}_t) - \beta \bar A_i\Bigr)^2

    ``[S]``, in squared nats. ``log_z`` comes from a head of the model, one number per sequence, and learns from the same loss. The
    reward is the mean of the sequence's advantages.
    """
    ratio = bounded(sequences.sum((log_prob - old_log_prob).detach()), log_ratio_bound).exp().clamp(max=imp_ratio_cap)
    gap = log_z + sequences.mean(log_prob - ref_log_prob) - flowrl_beta_coef * sequences.mean(advantages)
    some = sequences.lengths > 0
    return ratio * gap.square(), {"flowrl/log_z": Mean(log_z.detach(), some), "flowrl/weight": Mean(ratio, some)}
