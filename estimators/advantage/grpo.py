"""GRPO's advantage: the group that answers the same prompt is the baseline, so no critic is needed."""

from typing import Annotated, Literal

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon
from .groups import Singleton, centred

Scale = Annotated[
    Literal["group-std", "batch-std", "none"], "what divides: the deviation of the group, that of all rewards of the step, or nothing"
]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-invariant", "group-centred", "unit-deviation"),
    aliases=("grpo_vectorized",),
    paper="arXiv:2402.03300",
    scope="group",
    deviates={"scope@scale=batch-std": "The deviation of the whole step divides, so that a group does not stand alone."},
    compat={
        "verl": "`grpo`, singleton: reward; without norm_adv_by_std_in_grpo scale: none; rewards under the mask count there.",
        "trl": "epsilon: 1e-4; scale_rewards 'batch' is scale: batch-std, 'none' is scale: none.",
        "skyrl": "`grpo`, singleton: reward; without grpo_norm_by_std scale: none.",
        "openrlhf": "`group_norm`: epsilon: 1e-9; `dr_grpo`: scale: none; the KL of each token comes on top.",
        "nemo-rl": "without use_leave_one_out_baseline; with it, which is its default, `grpo-leave-one-out`.",
        "areal": "mean_level and std_level `group`: epsilon: 1e-5; for all its levels `group-normalise`.",
        "slime": "`grpo`; with --disable-grpo-std-normalization scale: none.",
        "roll": "`grpo`; a sequence alone in its group is NaN there.",
        "ms-swift": "epsilon: 1e-4; scale_rewards `batch` is scale: batch-std, `none` is scale: none.",
        "prime-rl": "scale: none.",
        "torchrl": "MCAdvantage: epsilon: 0, but it divides by 1e-6 at least.",
        "tunix": "`grpo`; `drgrpo` is scale: none.",
    },
)
def grpo(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    scale: Scale = "group-std",
    epsilon: Epsilon = 1e-6,
    singleton: Singleton = "zero",
) -> PerSequence:
    r"""Measure each reward against its group's mean, in units of a deviation; ``rloo`` leaves the sequence itself out and divides by none.

    .. math:: A_i = \frac{s_i - \operatorname{mean}_g s}{\operatorname{std} + \epsilon}

    ``[S]``, without unit (``none``: in units of the reward, which is Dr.GRPO). The deviation is the unbiased one of the group, or of all
    *raw* rewards of the step (``batch-std``). A tied group gives exactly 0, where tied means: apart by no more than the rounding of its
    rewards. A sequence alone in its group gives 0, or with ``singleton: reward`` its reward against mean 0 and deviation 1, as in verl.
    A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, deviation = centred(rewards, sequences, singleton)
    if scale == "none":
        return apart.to(rewards.dtype)
    if scale == "batch-std":
        deviation = sequences.moments(rewards)[2].sqrt()
    return safe_divide(apart, deviation + epsilon).to(rewards.dtype)
