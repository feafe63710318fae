"""Veto: one token that the trainer finds all but impossible spoils the whole sequence."""

import math
from typing import Annotated

from ...batch import Sequences
from ...registry import PerToken, correction
from ...registry.hyper import Positive
from .levels import Keep, distance, without


@correction(
    claims=("neutral-at-agreement",),
    aliases=("rs-veto",),
    scope="sequence",
    suits={"threshold": "< 1"},
    compat={"slime": "mis.py's `rs_veto_threshold` is `threshold`."},
)
def veto(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    *,
    threshold: Annotated[Positive, "a sequence with a token whose ratio is smaller is dropped"] = 1e-4,
) -> Keep:
    r"""Drop a sequence as soon as one of its ratios of trainer to sampler is below a threshold; ``outlier`` also bounds them above.

    .. math:: \text{kept where } \min_{s} e^{d_s} \ge threshold, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, all tokens of a sequence alike. Such a token is one that the trainer would never have sampled, so what follows it is off its
    path. Nothing is weighed. The sequence leaves by selection, so ``denominator`` decides whether the others count for more; its reward
    stays in the statistics of its group. A token that the sampler did not score has the ratio 1; an empty sequence stays as it is.
    """
    return None, without(distance(old_log_prob, rollout_log_prob) < math.log(threshold), sequences)
