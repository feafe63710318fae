"""A token that one of the policies finds impossible has no ratio, so it leaves."""

from ...registry import PerToken, correction
from .levels import Keep


@correction(scope="token")
def drop_impossible(
    log_prob: PerToken,
    old_log_prob: PerToken,
    rollout_log_prob: PerToken | None = None,
) -> Keep:
    r"""Drop a token whose log-probability is infinite on any side: no clip makes sense of it, and counting it as ratio 0 shrinks the loss.

    .. math:: \text{kept where } \ell_t, \ell^{old}_t, \ell^{roll}_t > -\infty

    ``[N]``. Such tokens come from a top-k or a grammar that only one side applied. It looks at the current policy, hence at every
    micro-batch anew. Nothing is weighed. Dropped tokens leave by selection, so ``denominator`` decides whether the others count for
    more. A token that the sampler did not score (NaN) stays.
    """
    keep = log_prob.detach().isfinite() & old_log_prob.isfinite()
    return None, keep if rollout_log_prob is None else keep & ~rollout_log_prob.isinf()
