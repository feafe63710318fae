"""k3-importance: k3 as the policy itself would have sampled it."""

from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Anchor, Cap, ImportanceCap
from .k3 import k3


@kl_estimator(
    paper="arXiv:2512.02556",
    scope="token",
    suits={"cap": "null"},
    claims=("zero-at-equality", "non-negative", "unbiased", "unbiased-gradient"),
    compat={
        "trl": "`beta` with use_bias_correction_kl (its default): log_ratio_bound: null, importance_cap: null; at the sequence level "
        "`importance-sequence`.",
        "liger-kernel": "use_bias_correction_kl: log_ratio_bound: null, importance_cap: null.",
        "slime": "use-unbiased-kl with `k3`: log_ratio_bound: null, importance_cap: null; with `low_var_kl` also cap: 10.",
        "nemo-rl": "cap: 10, importance_cap: null; anchor: current, or rollout with use_on_policy_kl_approximation.",
    },
)
def k3_importance(
    log_prob: PerToken,
    ref_log_prob: PerToken,
    old_log_prob: PerToken | None = None,
    rollout_log_prob: PerToken | None = None,
    *,
    anchor: Anchor = "old",
    log_ratio_bound: LogRatioBound = 20.0,
    cap: Cap = None,
    importance_cap: ImportanceCap = 10.0,
) -> PerToken:
    r"""Weigh ``k3`` by the importance ratio, gradient included, which makes both of the policy that is trained: DeepSeek-V3.2's KL.

    .. math:: k = w\, (e^{-d} - 1 + d), \qquad \frac{\partial k}{\partial \ell} = w\, d, \qquad
        w = \min(e^{\ell - \ell^{anchor}}, importance\_cap), \quad d = \ell - \ell^{ref}

    ``[N]``, in nats. The exponential of ``k3``'s own gradient cancels: what is left is that of ``k2`` for the policy, unbiased for the KL
    at the states that were visited, until ``importance_cap`` binds. The same as ``k3`` with ``gradient: importance-token``. An absent
    anchor raises ``ColumnError``.
    """
    return k3(
        log_prob,
        ref_log_prob,
        old_log_prob,
        rollout_log_prob,
        gradient="importance-token",
        anchor=anchor,
        log_ratio_bound=log_ratio_bound,
        cap=cap,
        importance_cap=importance_cap,
    )
