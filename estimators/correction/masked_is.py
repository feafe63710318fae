"""Masked importance sampling: weigh by the ratio to the sampler, and leave out where it is too far from 1 to be trusted."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import bounded
from ...registry import PerToken, correction
from ...registry.hyper import LogRatioBound, NonNegative, Positive
from .levels import Both, Over, log_ratio, ratio_within


@correction(
    claims=(
        "corrects-direction",
        "neutral-at-agreement",
    ),
    aliases=("mis",),
    scope="sequence",
    suits={"lower": "<= 1", "upper": ">= 1"},
    requires={"lower": "<= upper"},
    compat={
        "verl": '`rollout_is_threshold: "L_U"` is `lower: L, upper: U`, with `denominator: original`; it puts weights of 0 there.',
        "trl": "`token_mask` and `sequence_mask` (the default): `clip_max` is `upper` (3.0), `clip_min` is `lower`, `denominator: original`.",
        "slime": "mis.py with mode `mask`: `tis_lower_bound` and `tis_upper_bound` are `lower` and `upper`.",
        "areal": "`metric: ratio, action: mask`: `level: token`, or `level: geometric` for its level `sequence`; `denominator: original`.",
        "unsloth-zoo": "`geometric_mask` is `level: geometric`.",
        "ms-swift": "`token_mask` is `lower: null`; its `sequence_mask` is `reject-k1` by the mean and then `truncated-is` with `cap: null`.",
    },
)
def masked_is(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    level: Over = "token",
    lower: Annotated[NonNegative | None, "what has a smaller weight is dropped; null: no bound"] = 0.5,
    upper: Annotated[Positive | None, "what has a larger weight is dropped; null: no bound"] = 2.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> Both:
    r"""Weigh by the ratio of trainer to sampler and drop what lies outside a band; ``truncated-is`` keeps it, at the bound.

    .. math:: w_t = e^{D_t}, \qquad \text{kept where } lower \le e^{D_t} \le upper

    ``[N]``, without unit; :math:`D_t` at its ``level`` as in ``truncated-is``. Both bounds are inclusive, null is none.
    ``log_ratio_bound`` bounds the weight alone, never the verdict. Dropped tokens
    leave by selection: with ``denominator: kept`` the others count for more, with ``original`` it is as if they had the weight 0. A
    token that the sampler did not score counts as :math:`d_t = 0`; an empty sequence stays as it is. Level ``segment`` without
    ``turns`` raises ``ColumnError``, bounds that cross ``ValueError``.
    """
    far = log_ratio(old_log_prob, rollout_log_prob, level, sequences, turns)
    return bounded(far, log_ratio_bound).exp(), ratio_within(far, lower, upper)
