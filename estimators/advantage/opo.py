"""OPO: the baseline with the least variance, if long answers have long gradients."""

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from .groups import Singleton, centred


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-equivariant"),
    paper="arXiv:2505.23585",
    scope="group",
    compat={
        "verl": "`opo`, singleton: reward.",
    },
)
def opo(rewards: PerSequence, sequences: Sequences, *, singleton: Singleton = "zero") -> PerSequence:
    r"""Measure each reward against its group's mean weighted by length: ``grpo`` without a deviation, where long answers say what is normal.

    .. math:: A_i = s_i - \frac{\sum_{j \in g} n_j s_j}{\sum_{j \in g} n_j}

    ``[S]``, in units of the reward; :math:`n_j` counts sampled tokens. Ties and singletons as in ``grpo``; a group without a token has the
    plain mean. A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, _ = centred(rewards, sequences, singleton)
    length = sequences.lengths.to(apart.dtype)
    baseline = safe_divide(sequences.group_sum(length * apart), sequences.group_sum(length))
    if singleton == "reward":
        baseline = baseline.where(sequences.group_size() > 1, 0.0)
    return (apart - sequences.group_spread(baseline)).to(rewards.dtype)
