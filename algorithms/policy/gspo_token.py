"""GSPO-token: one ratio per sequence decides who is clipped, and each token is then moved by its own advantage."""

from ...batch import Sequences
from ...numerics import bounded, clipped_surrogate, straight_through
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    paper="arXiv:2507.18071",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean", "clip_ratio_low": "<= 0.05", "clip_ratio_high": "<= 0.05"},
    claims=("on-policy-gradient",),
    compat={
        "verl": "`gspo`: both bounds as there; log_ratio_bound: 10; its actor takes token-mean unless told otherwise.",
        "skyrl": "`gspo` with loss_reduction sequence_mean: eps_clip_low and eps_clip_high; log_ratio_bound: 10.",
        "trinity-rft": "`gspo`: clip_range_low and clip_range_high; log_ratio_bound: 10.",
        "tinker": "`gspo`, with the ratio over its sequence_ratio_mask and token-sum.",
        "ms-swift": "importance_sampling_level sequence_token; log_ratio_bound: null.",
    },
)
def gspo_token(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 3e-4,
    clip_ratio_high: ClipRange = 4e-4,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip the sequence's ratio as ``gspo`` does, but let each token's gradient carry its own advantage (verl's ``gspo``).

    .. math:: s_t = \operatorname{sg}(s_i)\, \frac{\pi_t}{\operatorname{sg}(\pi_t)}, \qquad
        L_t = \max\bigl(-s_t A_t,\; -\operatorname{clip}(s_t, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr)

    ``[N]``, in units of the advantage; the value is that of ``gspo``. For advantages that differ within a sequence: with one number per
    sequence it is ``gspo``. Section 4.3 of the paper.
    """
    log_ratio = straight_through(sequences.spread(sequences.mean(log_prob - old_log_prob)), log_prob)
    return clipped_surrogate(bounded(log_ratio, log_ratio_bound), advantages, clip_ratio_low, clip_ratio_high)
