"""trusted-baseline: a doubtful grade says little about what is normal, and moves the policy little."""

import torch
from lossary import PerSequence, Sequences, advantage_estimator
from lossary.numerics import accumulator, safe_divide

from .columns import HIGHEST, LOWEST


@advantage_estimator(scope="group", deviates={"referenced": "an idea of this package"})
def trusted_baseline(rewards: PerSequence, sequences: Sequences, trust: PerSequence | None = None) -> PerSequence:
    r"""Measure each reward against its group's mean weighted by trust, and weigh the difference alike; ``grpo`` asks every grade as much.

    .. math:: A_i = c_i \Bigl(s_i - \frac{\sum_{j \in g} c_j s_j}{\sum_{j \in g} c_j}\Bigr)

    ``[S]``, in units of the reward; :math:`c_i` is ``trust`` cut to 0..1. The advantages of a group add up to 0, as those of ``grpo``
    do. With equal trust it is ``grpo`` with ``scale: none``, times that trust; a batch without ``trust`` is trusted. A group that
    nobody trusts, and a sequence alone in its group, give 0. A batch without ``group_ids`` raises ``ColumnError``.
    """
    exact = rewards.to(accumulator(rewards))
    weight = torch.ones_like(exact) if trust is None else trust.to(exact.dtype).clamp(LOWEST, HIGHEST)
    # Around the plain mean first, so that rewards far from 0 lose no digits to their own size.
    apart = exact - sequences.group_spread(sequences.group_mean(exact))
    baseline = safe_divide(sequences.group_sum(weight * apart), sequences.group_sum(weight))
    return (weight * (apart - sequences.group_spread(baseline))).to(rewards.dtype)
