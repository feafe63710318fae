"""Off-policy sequence masking: a bad answer that the policy has already moved away from teaches nothing more."""

from typing import Annotated, Literal

from ...batch import Sequences
from ...registry import ColumnError, PerToken, correction
from ...registry.hyper import NonNegative
from .levels import Keep, distance

Behaviour = Annotated[Literal["rollout", "old"], "whose log-probabilities the policy is compared with: the sampler's, or the old policy's"]

OpsmDelta = Annotated[NonNegative, "mean fall of a sequence's log-probability above which its bad tokens are dropped [nats per token]"]


@correction(
    claims=("neutral-at-agreement",),
    aliases=("opsm", "off-policy-sequence-mask"),
    paper="arXiv:2512.02556",
    scope="sequence",
    compat={
        "trl": "`off_policy_mask_threshold` is `opsm_delta`, against the sampler where its log-probs are there; `denominator: original`.",
        "slime": "`--use-opsm`: `behaviour: old`.",
        "trinity-rft": "`enable_sequence_masking` with `delta_sequence_masking` (0.1): `behaviour: old`, `denominator: original`.",
        "ms-swift": "`off_policy_sequence_mask_delta`, with `denominator: kept`.",
    },
)
def off_policy_sequence(
    log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    old_log_prob: PerToken | None = None,
    rollout_log_prob: PerToken | None = None,
    *,
    behaviour: Behaviour = "rollout",
    opsm_delta: OpsmDelta = 0.1,
) -> Keep:
    r"""Drop the tokens of negative advantage of sequences that became less likely by more than a threshold, for any loss (``opsm`` clips).

    .. math:: \text{dropped where } A_t < 0 \ \text{and}\ \tfrac{1}{n_i} \sum_s (\ell^b_s - \ell_s) > \delta

    ``[N]``, :math:`\delta` in nats per token. :math:`\ell^b` is the sampler's log-probability, or the old policy's. It looks at the
    current policy, hence at every micro-batch anew. Nothing is weighed. What leaves does so by selection, so ``denominator`` decides
    whether the others count for more: DeepSeek-V3.2 keeps the original one. A token that the sampler did not score moves nothing; an
    empty sequence stays as it is. The column of ``behaviour`` missing raises ``ColumnError``.
    """
    sampled = rollout_log_prob if behaviour == "rollout" else old_log_prob
    if sampled is None:
        raise ColumnError(f"correction 'off-policy-sequence' with behaviour: {behaviour} needs the column '{behaviour}_log_prob'.")
    gone = sequences.mean(-distance(log_prob.detach(), sampled)) > opsm_delta
    return None, ~((advantages < 0) & sequences.spread(gone))
