"""RLOO: the baseline of a sequence is the mean of the others that answer the same prompt."""

from ...batch import Sequences
from ...registry import PerSequence, advantage_estimator
from .groups import Singleton, centred


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-equivariant", "group-centred", "independent-baseline"),
    aliases=("rloo_vectorized",),
    paper="arXiv:2402.14740",
    scope="group",
    compat={
        "verl": "`rloo`, singleton: reward; `rloo_vectorized` as it stands.",
        "trl": "its RLOO trainer without normalize_advantages.",
        "skyrl": "`rloo`.",
        "openrlhf": "`rloo`; the KL of each token comes on top.",
        "nemo-rl": "use_leave_one_out_baseline without normalize_rewards.",
        "areal": "mean_leave1out without std_level, singleton: reward.",
        "tunix": "`rloo`.",
    },
)
def rloo(rewards: PerSequence, sequences: Sequences, *, singleton: Singleton = "zero") -> PerSequence:
    r"""Measure each reward against the mean of its group's *other* rewards: unbiased, where the baseline of ``grpo`` contains the sequence.

    .. math:: A_i = s_i - \frac{1}{n - 1} \sum_{j \ne i} s_j = \frac{n}{n - 1} \Bigl(s_i - \operatorname{mean}_g s\Bigr)

    ``[S]``, in units of the reward. Alone in its group a sequence gives 0, or with ``singleton: reward`` its reward (verl's ``rloo``). A
    tied group gives exactly 0. A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, _ = centred(rewards, sequences, singleton)
    size = sequences.group_spread(sequences.group_size()).to(apart.dtype)
    return (apart * size / (size - 1).clamp(min=1)).to(rewards.dtype)
