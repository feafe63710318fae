"""M2PO's rejection: bound the second moment of the mismatch over the step, by leaving out as few tokens as that takes."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import accumulator, scan
from ...registry import Mean, PerToken, Report, correction
from ...registry.hyper import Positive
from .levels import Keep, distance

M2Threshold = Annotated[Positive, "the mean squared log-ratio of the tokens that stay is below this [squared nats]"]


@correction(
    claims=("neutral-at-agreement",),
    paper="arXiv:2510.01161",
    scope="step",
    compat={"areal": "`m2_threshold`, with `denominator: original`; there the moment is that of a micro-batch."},
)
def m2po(
    old_log_prob: PerToken, rollout_log_prob: PerToken, sequences: Sequences, *, m2_threshold: M2Threshold = 0.04
) -> tuple[Keep, Report]:
    r"""Drop the tokens of largest squared log-ratio until the mean of the rest is below a threshold; ``reject-k2`` bounds each one's.

    .. math:: \text{keep the most tokens of smallest } d_t^2 \text{ whose mean is} < \theta, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, :math:`\theta` in squared nats. The moment is that of all tokens of the step, over all ranks. Tokens that are tied leave or
    stay together, so that the order of the batch does not matter, and the smallest always stay. Nothing is weighed. Dropped tokens leave
    by selection, so ``denominator`` decides whether the others count for more. A token that the sampler did not score has
    :math:`d_t = 0`.
    """
    square = distance(old_log_prob, rollout_log_prob).to(accumulator(old_log_prob)).square()
    everyone = sequences.ranks.gather(square).sort().values
    n = everyone.shape[0]
    ordered = torch.cat([everyone, everyone.new_full((1,), float("inf"))])
    row = torch.zeros(n, dtype=torch.long, device=square.device)
    total = scan(everyone, 1.0, row, row.new_full((1,), n), row.new_zeros(1), reverse=False)  # a cumsum that is deterministic anywhere
    fits = total < m2_threshold * torch.arange(1, n + 1, device=square.device)
    first_out = ordered.index_select(0, fits.sum().reshape(1))
    keep = (square < first_out) | (square <= ordered[0])
    return (None, keep), {"m2": Mean(square), "m2_dropfrac": Mean(~keep)}
