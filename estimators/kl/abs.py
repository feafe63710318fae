"""abs: the size of the log-ratio."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Anchor, Cap, Gradient, ImportanceCap, shaped


@kl_estimator(
    name="abs",
    scope="token",
    suits={"cap": "null"},
    claims=("zero-at-equality", "non-negative"),
    compat={
        "verl": "`abs`: log_ratio_bound: null. `abs+`: also gradient: straight-through.",
        "skyrl": "`abs`: log_ratio_bound: null.",
        "roll": "`abs`: log_ratio_bound: null.",
    },
)
def absolute(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    old_log_prob: PerToken | None = None,
    rollout_log_prob: PerToken | None = None,
    *,
    gradient: Gradient = "own",
    anchor: Anchor = "old",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
    importance_cap: ImportanceCap = 10.0,
) -> PerToken:
    r"""Return the size of the log-ratio: a distance and not an estimate of the KL, whose pull (:math:`\pm 1`) is the same near and far.

    .. math:: k_{abs} = |d|, \qquad d = \ell - \ell^{ref}

    ``[N]``, in nats. The gradient, with :math:`w = \min(e^{\ell - \ell^{anchor}}, importance\_cap)`:

    =================  ==========  ========================  =====================================================================
    gradient           value       by ``log_prob``           in expectation
    =================  ==========  ========================  =====================================================================
    own                ``|d|``     ``sign(d)``               of the summed difference of probabilities, on policy
    straight-through   ``|d|``     ``d``                     of the KL, on policy
    unbiased           ``|d|``     ``w d``                   of the KL, off policy too
    importance-token   ``w |d|``   ``w (|d| + sign(d))``     of the mean of ``|d|``
    =================  ==========  ========================  =====================================================================

    A log-ratio beyond the bound has neither an own gradient nor a weighted one. An absent anchor raises ``ColumnError``.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    policies = log_prob, ref_log_prob, old_log_prob, rollout_log_prob
    return shaped(log_ratio.abs(), log_ratio, policies, gradient, anchor, cap, importance_cap)
