"""Rejection by the squared log-ratio: drop what has moved too far, whichever way."""

from typing import Annotated

from ...batch import Sequences
from ...registry import PerToken, correction
from ...registry.hyper import Positive
from .levels import Aggregation, Keep, distance, gathered, within


@correction(
    claims=("neutral-at-agreement",),
    scope="sequence",
    compat={
        "verl": "`token_k2`, `seq_sum_k2`, `seq_mean_k2`, `seq_max_k2`: the rest of the name is `agg`, the threshold is `upper`.",
        "areal": "`metric: kl_k2, action: mask` with `level: token`, or with its `agg`; `denominator: original`.",
        "torchrl": "`kl_mask_threshold` is `agg: token`.",
    },
)
def reject_k2(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    agg: Aggregation = "mean",
    upper: Annotated[Positive, "the largest half squared log-ratio that stays [squared nats]"] = 0.02,
) -> Keep:
    r"""Keep where half the squared log-ratio is small; ``reject-k3`` punishes a likelier trainer more than a less likely one.

    .. math:: \text{kept where } \operatorname{agg}(\tfrac12 d^2) \le upper, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, ``upper`` in squared nats. No sign can cancel, so a mean over a sequence notices what ``reject-k1`` averages away. No log-ratio
    is clamped before it is judged, and nothing is weighed. Rejected tokens leave by selection, so ``denominator`` decides whether the others count for more. A token that the
    sampler did not score has :math:`d_t = 0`; an empty sequence stays as it is. ``segment`` without ``turns`` raises ``ColumnError``.
    """
    return None, within(gathered(distance(old_log_prob, rollout_log_prob).square() / 2, agg, sequences, turns), None, upper)
