"""Outlier rejection: a sequence leaves when any of its tokens has a ratio outside a wide band."""

import math
from typing import Annotated

from ...batch import Sequences
from ...registry import PerToken, correction
from ...registry.hyper import Positive
from .levels import Keep, distance, within, without


@correction(
    claims=("neutral-at-agreement",),
    aliases=("outlier-token",),
    scope="sequence",
    suits={"lower": "<= 1", "upper": ">= 1"},
    requires={"lower": "<= upper"},
    compat={
        "skyrl": "`outlier_token_is_threshold_low` and `outlier_token_is_threshold_high` are `lower` and `upper`; it applies this first."
    },
)
def outlier(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    *,
    lower: Annotated[Positive | None, "a sequence with a token whose ratio is smaller is dropped; null: no bound"] = 1e-4,
    upper: Annotated[Positive | None, "a sequence with a token whose ratio is larger is dropped; null: no bound"] = 100.0,
) -> Keep:
    r"""Drop a sequence when one ratio of trainer to sampler lies outside a band; ``veto`` looks below only, ``reject-k1`` at sums or means.

    .. math:: \text{kept where } lower \le e^{d_s} \le upper \text{ for all } s, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, all tokens of a sequence alike; bounds are inclusive, null is none. Nothing is weighed. The sequence leaves by selection, so
    ``denominator`` decides whether the others count for more; its reward stays in the statistics of its group. A token that the sampler
    did not score has the ratio 1; an empty sequence stays as it is. Bounds that cross raise ``ValueError``.
    """
    low, high = (None if b is None else math.log(b) for b in (lower, upper))
    return None, without(~within(distance(old_log_prob, rollout_log_prob), low, high), sequences)
