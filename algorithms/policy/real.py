"""REAL: rewards as labels, and the loss of a classifier that tells a prompt's good answers from its bad ones."""

from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import bounded
from ...registry import Mean, PerGroup, PerToken, Report, policy_loss
from ...registry.hyper import LogRatioBound, Positive


@policy_loss(
    paper="arXiv:2602.05630",
    scope="group",
    suits={"aggregation": "group-mean"},
    compat={
        "ms-swift": "its REAL loss: real_tau as there.",
    },
)
def real(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    real_tau: Annotated[Positive, "temperature: what a sequence's mean log-ratio is divided by [nats]"] = 0.5,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerGroup, Report]:
    r"""Compare the answers to one prompt with each other; ``gspo`` weighs each by its own advantage, and here only its sign counts.

    .. math:: L_g = \log\Bigl(1 + \sum_{i \in -} e^{s_i / \tau}\Bigr) + \log\Bigl(1 + \sum_{i \in +} e^{-s_i / \tau}\Bigr), \qquad
        s_i = \tfrac{1}{n_i} \sum_t (\ell_t - \ell^{old}_t)

    ``[G]``, in nats. An answer is good when the mean of its advantages is positive and bad when it is negative. A group without both
    kinds has nothing to compare and the loss 0. The gradient of a sequence is at most :math:`1 / \tau`, however far it has moved.
    """
    score = bounded(sequences.mean(log_prob - old_log_prob) / real_tau, log_ratio_bound)
    side = sequences.mean(advantages)
    good, bad = side > 0, side < 0
    mixed = (sequences.group_sum(good.to(score.dtype)) > 0) & (sequences.group_sum(bad.to(score.dtype)) > 0)
    some = sequences.group_sum((sequences.lengths > 0).to(score.dtype)) > 0
    both = sequences.group_spread(mixed)
    exponential = torch.where(good, -score, score).exp()
    wrong = torch.log1p(sequences.group_sum(torch.where(bad & both, exponential, 0.0)))
    missed = torch.log1p(sequences.group_sum(torch.where(good & both, exponential, 0.0)))
    return wrong + missed, {"real/mixed_groups": Mean(mixed, some), "ppo_kl": Mean((old_log_prob - log_prob).detach())}
