"""A token that the current policy finds impossible has no ratio, so it leaves."""

from ...registry import PerToken, correction
from .levels import Keep


@correction(scope="token", deviates={"referenced": "No paper or framework is known that has it."})
def drop_impossible(log_prob: PerToken) -> Keep:
    r"""Drop a token that the current policy cannot say: no clip makes sense of its ratio, and counting it as ratio 0 shrinks the loss.

    .. math:: \text{kept where } \ell_t > -\infty

    ``[N]``. Such tokens come from a top-k or a grammar that only the trainer applies. A batch never brings an infinite log-probability that
    was recorded (of the old policy, the sampler, the reference): making it raises ``ColumnError``, and the token is to be taken out of the
    mask. It looks at the current policy, hence at every micro-batch anew. Nothing is weighed. Dropped tokens leave by selection, so
    ``denominator`` decides whether the others count for more; ``denominator: kept`` must know how many leave before the first micro-batch,
    so it needs ``decide: measure``.
    """
    return None, log_prob.detach() != float("-inf")
