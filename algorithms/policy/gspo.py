"""GSPO: the reward is given to whole sequences, so the ratio that is clipped is the whole sequence's."""

from ...batch import Sequences
from ...numerics import bounded, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    paper="arXiv:2507.18071",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean", "clip_ratio_low": "<= 0.05", "clip_ratio_high": "<= 0.05"},
    compat={
        "trl": "importance_sampling_level sequence with loss_type grpo: epsilon and epsilon_high; log_ratio_bound: null.",
        "liger-kernel": "importance_sampling_level sequence with loss_type grpo: epsilon_low and epsilon_high; log_ratio_bound: null.",
        "areal": "importance_sampling_level sequence: eps_clip and eps_clip_higher, advantages averaged over each sequence; log_ratio_bound: null.",
        "slime": "`gspo`: eps_clip and eps_clip_high; it adds sequences up and divides by the global batch later; log_ratio_bound: null.",
        "openrlhf": "`gspo`, which forces the mean over sequences: clip_eps_low and clip_eps_high; log_ratio_bound: null.",
        "nemo-rl": "sequence_level_importance_ratios, token_level_loss off: ratio_clip_min and ratio_clip_max; log_ratio_bound: null.",
        "roll": "importance_sampling seq; log_ratio_bound: null.",
        "ms-swift": "importance_sampling_level sequence; log_ratio_bound: null.",
    },
)
def gspo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 3e-4,
    clip_ratio_high: ClipRange = 4e-4,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip one length-normalised ratio per sequence where ``ppo-clip`` clips one per token; all tokens stop paying together.

    .. math:: s_i = \exp\Bigl(\tfrac{1}{n_i} \sum_t (\ell_t - \ell^{old}_t)\Bigr), \qquad
        L_t = \max\bigl(-s_i A_t,\; -\operatorname{clip}(s_i, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr)

    ``[N]``, in units of the advantage. The gradient goes through the mean, so every token shares in every advantage of its sequence;
    ``gspo-token`` leaves each token its own, and the two agree where the advantage is one number per sequence. A mean over :math:`n_i`
    tokens moves far less than one token does: PPO's 0.2 would never clip. Equations 5 and 7 of the paper.
    """
    log_ratio = bounded(sequences.mean(log_prob - old_log_prob), log_ratio_bound)
    return clipped_surrogate(sequences.spread(log_ratio), advantages, clip_ratio_low, clip_ratio_high)
