"""PPO-clip of whole answers: the ratio is the product of the tokens' ratios, which is the importance weight that theory asks for."""

import torch

from ...batch import Sequences
from ...numerics import bounded, clipped_surrogate
from ...registry import Mean, PerSequence, PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    aliases=("rloo-seq-ppo",),
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean"},
    compat={
        "trl": "its RLOO trainer: epsilon and epsilon_high; log_ratio_bound: null; all rows count.",
    },
)
def sequence_clip(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerSequence, Report]:
    r"""Clip the product of a sequence's ratios; ``gspo`` clips their geometric mean, which is closer to 1 the longer the answer.

    .. math:: \rho_i = \prod_t r_t, \qquad
        L_i = \max\bigl(-\rho_i \bar A_i,\; -\operatorname{clip}(\rho_i, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, \bar A_i\bigr)

    ``[S]``, in units of the advantage; :math:`\bar A_i` is the mean of the sequence's. Unbiased without the clip, but the product of
    many ratios soon leaves any bound: for long answers nearly every sequence is silent. TRL's RLOO.
    """
    log_ratio = bounded(sequences.sum(log_prob - old_log_prob), log_ratio_bound)
    some = sequences.lengths > 0
    loss, report = clipped_surrogate(log_ratio, sequences.mean(advantages), clip_ratio_low, clip_ratio_high)
    kept = {name: Mean(x.x, some) for name, x in report.items() if isinstance(x, Mean)}
    return torch.where(some, loss, 0.0), {**kept, "ppo_kl": Mean((old_log_prob - log_prob).detach())}
