"""Rejection by the log-ratio: drop what the trainer finds too much likelier, or too much less likely, than the sampler did."""

from typing import Annotated

from ...batch import Sequences
from ...registry import PerToken, correction
from ...registry.hyper import Positive
from .levels import Aggregation, Keep, distance, gathered, ratio_within


@correction(
    claims=("neutral-at-agreement",),
    aliases=("reject-ratio",),
    scope="sequence",
    suits={"lower": "= 1 / upper", "upper": ">= 1"},
    requires={"lower": "<= upper"},
    compat={
        "verl": '`token_k1`, `seq_sum_k1`, `seq_mean_k1`: its k1 bounds the inverse ratio, so "a_b" is `lower: 1/b, upper: 1/a`.',
        "skyrl": "`sequence_mask_metric: geometric` is `agg: mean` (0.99, 1.01), `product` is `sum` (0.5, 2.0); `token_mask` is `token`.",
        "openrlhf": "`is_correction_level: seq, is_correction_mode: mask` with gating `ratio` is `agg: mean`, then `truncated-is` "
        "with `cap: null`.",
        "nemo-rl": "type `seq-mask-tis` is `agg: mean`, then `truncated-is` with `cap: null`.",
        "slime": "mis.py with `use_rs`: levels `token`, `sequence` and `geometric` are `agg` `token`, `sum` and `mean`.",
        "areal": "`metric: ratio, action: mask` has its bounds in ratios like these.",
        "roll": "the filters by ratio: `geometric` is `mean`, `sequence` is `sum`, `segment` is `segment`.",
    },
)
def reject_k1(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    agg: Aggregation = "sum",
    lower: Annotated[Positive | None, "the smallest ratio of trainer to sampler that stays; null: no bound"] = 0.5,
    upper: Annotated[Positive | None, "the largest ratio of trainer to sampler that stays; null: no bound"] = 2.0,
) -> Keep:
    r"""Keep where the ratio of trainer to sampler lies in a band, and weigh nothing; ``masked-is`` also weighs by it.

    .. math:: \text{kept where } \ln lower \le \operatorname{agg}(d) \le \ln upper, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``. The bounds are ratios old / rollout. verl's k1 is :math:`-d_t`, hence its bounds are those of the inverse ratio: only bounds
    with ``lower = 1 / upper`` mean the same. No log-ratio is clamped before it is judged. By ``sum`` the product of the sequence's ratios is bounded, by ``mean`` their geometric
    mean. Rejected tokens leave by selection, so ``denominator`` decides whether the others count for more. A token that the sampler did
    not score has :math:`d_t = 0`; an empty sequence stays as it is. ``segment`` without ``turns`` raises ``ColumnError``, bounds that
    cross ``ValueError``.
    """
    return None, ratio_within(gathered(distance(old_log_prob, rollout_log_prob), agg, sequences, turns), lower, upper)
