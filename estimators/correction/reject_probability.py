"""Rejection by the difference of probabilities: what hardly ever happens may have any ratio, what often happens may not."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import probability_shift
from ...registry import PerToken, correction
from ...registry.hyper import Real
from .levels import Aggregation, Keep, gathered, within


@correction(
    claims=("neutral-at-agreement",),
    aliases=("reject-tv",),
    scope="sequence",
    compat={
        "roll": "the filters by difference: `diff_low` and `diff_high` are `lower` and `upper`, `sequence` is `agg: sum`.",
        "openrlhf": "gating `tv`: `absolute: true`, with `agg: token` for its level `token` and `mean` for `seq`; then `truncated-is` with "
        "`cap: null`.",
        "prime-rl": "its default looks at the current policy and the sign of the advantage: use the policy loss `prime-rl`.",
    },
)
def reject_probability(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    agg: Aggregation = "token",
    lower: Annotated[Real | None, "the smallest change of probability from sampler to trainer that stays; null: no bound"] = -0.2,
    upper: Annotated[Real | None, "the largest change of probability from sampler to trainer that stays; null: no bound"] = 0.2,
    absolute: Annotated[bool, "whether the change counts by its size alone"] = False,
) -> Keep:
    r"""Keep where the probability has changed little; by ratios (``reject-k1``) rare tokens are rejected most, here the likely ones.

    .. math:: \text{kept where } lower \le \operatorname{agg}\bigl(e^{\ell^{old}} - e^{\ell^{roll}}\bigr) \le upper

    ``[N]``, a difference of probabilities between -1 and 1 per token; ``absolute`` takes its size, which is the total variation of
    "this token or another". Nothing is weighed and nothing is exponentiated past 1. Rejected tokens leave by selection, so
    ``denominator`` decides whether the others count for more. A token that the sampler did not score has the difference 0; an empty
    sequence stays as it is. ``segment`` without ``turns`` raises ``ColumnError``, bounds that cross ``ValueError``.
    """
    shift = probability_shift(old_log_prob, torch.where(rollout_log_prob.isnan(), old_log_prob, rollout_log_prob))
    return None, within(gathered(shift.abs() if absolute else shift, agg, sequences, turns), lower, upper)
