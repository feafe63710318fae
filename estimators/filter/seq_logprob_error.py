"""Answers that the trainer does not recognise as what the sampler says it sampled."""

from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import bounded
from ...registry import PerSequence, PerToken, sequence_filter
from ...registry.hyper import LogRatioBound

Threshold = Annotated[float, Field(ge=1, allow_inf_nan=False, description="the largest mean error that stays; 1 is no error at all")]


@sequence_filter(
    compat={"nemo-rl": "use `seq-logprob-error` for seq_logprob_error_threshold; NeMo masks those sequences, here they count nowhere."},
)
def seq_logprob_error(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    *,
    seq_logprob_error_threshold: Threshold,
    log_ratio_bound: LogRatioBound = 20.0,
) -> PerSequence:
    r"""Keep the sequences whose log-probabilities agree with the sampler's on average; a correction would weigh their tokens instead.

    .. math:: \frac{1}{n_i} \sum_t e^{|\ell^{rollout}_t - \ell^{old}_t|} \le \tau

    ``[S]`` bool; :math:`\tau \ge 1` has no unit. A token that the sampler did not score (NaN) has no error, and neither has a sequence
    without a token.
    """
    apart = torch.where(rollout_log_prob.isnan(), 0.0, old_log_prob - rollout_log_prob)
    error = bounded(apart.abs(), log_ratio_bound).exp()
    return (sequences.mean(error) <= seq_logprob_error_threshold) | (sequences.lengths == 0)
