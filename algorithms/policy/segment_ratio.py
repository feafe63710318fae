"""Segment ratio: one ratio per turn, between a token's and a whole conversation's."""

from ...batch import Sequences
from ...numerics import bounded, clipped_surrogate, run_mean
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    aliases=("turn-ratio",),
    scope="sequence",
    suits={"aggregation": "seq-mean-token-mean"},
    compat={
        "roll": "its segment ratio: each run of the response mask is a turn; pg_clip is both bounds; log_ratio_bound: null.",
    },
)
def segment_ratio(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    turns: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 0.2,
    clip_ratio_high: ClipRange = 0.2,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Clip the length-normalised ratio of each turn; with a single turn it is ``gspo``, with turns of one token ``ppo-clip``.

    .. math:: s_k = \exp\Bigl(\tfrac{1}{|k|} \sum_{t \in k} (\ell_t - \ell^{old}_t)\Bigr), \qquad
        L_t = \max\bigl(-s_k A_t,\; -\operatorname{clip}(s_k, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr)

    ``[N]``, in units of the advantage. A turn is a run of tokens with the same number in ``turns``, inside one sequence. The gradient
    goes through the mean, so the tokens of a turn share it. From ROLL.
    """
    first = (sequences.places == 0) | (turns != turns.roll(1, 0))
    log_ratio = run_mean(log_prob - old_log_prob, first)
    return clipped_surrogate(bounded(log_ratio, log_ratio_bound), advantages, clip_ratio_low, clip_ratio_high)
