"""LUSPO: GSPO without its bias for short answers, since a sequence is paid by its length."""

from ...batch import Sequences
from ...numerics import bounded, clipped_surrogate
from ...registry import PerToken, Report, policy_loss
from ...registry.hyper import ClipBelow, ClipRange, LogRatioBound


@policy_loss(
    paper="arXiv:2602.05261",
    scope="sequence",
    suits={"aggregation": "seq-mean-token-sum", "clip_ratio_low": "<= 0.05", "clip_ratio_high": "<= 0.05"},
    compat={
        "trl": "loss_type luspo with importance_sampling_level sequence: epsilon and epsilon_high; log_ratio_bound: null.",
        "liger-kernel": "loss_type luspo at level sequence only: at level token it counts padding; log_ratio_bound: null.",
        "unsloth-zoo": "loss_type luspo with importance_sampling_level sequence: epsilon_low and epsilon_high; log_ratio_bound: null.",
    },
)
def luspo(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    clip_ratio_low: ClipBelow = 2e-3,
    clip_ratio_high: ClipRange = 2.5e-3,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[PerToken, Report]:
    r"""Return the loss of ``gspo``, token for token: what makes it LUSPO is that the tokens of a sequence are added, not averaged.

    .. math:: s_i = \exp\Bigl(\tfrac{1}{n_i} \sum_t (\ell_t - \ell^{old}_t)\Bigr), \qquad
        L_t = \max\bigl(-s_i A_t,\; -\operatorname{clip}(s_i, 1 - \epsilon_{low}, 1 + \epsilon_{high})\, A_t\bigr)

    ``[N]``, in units of the advantage. With the aggregation ``seq-mean-token-sum`` the sequence's loss is :math:`n_i` times that of
    GSPO, which undoes the :math:`1/n_i` inside the gradient of :math:`s_i`: every token pulls alike, however long its answer.
    """
    log_ratio = bounded(sequences.mean(log_prob - old_log_prob), log_ratio_bound)
    return clipped_surrogate(sequences.spread(log_ratio), advantages, clip_ratio_low, clip_ratio_high)
