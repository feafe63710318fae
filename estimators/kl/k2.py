"""k2: half the squared log-ratio."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Anchor, Cap, Gradient, ImportanceCap, shaped


@kl_estimator(
    aliases=("mse",),
    paper="http://joschu.net/blog/kl-approx.html",
    scope="token",
    suits={"cap": "null"},
    claims=("zero-at-equality", "non-negative", "unbiased-gradient"),
    compat={
        "verl": "`mse`, `k2` (and `k2+`, which is the same): log_ratio_bound: null.",
        "skyrl": "`k2`: log_ratio_bound: null.",
        "openrlhf": "`k2`: log_ratio_bound: null, cap: 10; with unbiased_gradient also gradient: unbiased.",
        "areal": "`k2`: log_ratio_bound: null, cap: 10.",
        "roll": "`mse`: log_ratio_bound: null.",
        "slime": "`k2`: log_ratio_bound: null; with an importance ratio also gradient: importance-token, importance_cap: null.",
        "nemo-rl": "`k2`: cap: 10, gradient: importance-token, importance_cap: null; anchor: current (rollout by "
        "use_on_policy_kl_approximation).",
        "prime-rl": "twice its `kl_tau` as the coefficient, for it takes the whole square (against the sampler's policy).",
        "tunix": "`mse_kl`: log_ratio_bound: null; its clamp is cap.",
    },
)
def k2(
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
    r"""Return half the squared log-ratio: biased as a value, but as a loss its gradient is the KL's own, which that of ``k3`` is not.

    .. math:: k_2 = \tfrac12 d^2, \qquad d = \ell - \ell^{ref}

    ``[N]``, in nats (by its expansion around equality). The gradient, with :math:`w = \min(e^{\ell - \ell^{anchor}}, importance\_cap)`:

    =================  =========  ===================  ==========================================================
    gradient           value      by ``log_prob``      in expectation
    =================  =========  ===================  ==========================================================
    own                ``k2``     ``d``                of the KL, on policy
    straight-through   ``k2``     ``d``                the same, also where the bound or the cap binds
    unbiased           ``k2``     ``w d``              of the KL, off policy too
    importance-token   ``w k2``   ``w (k2 + d)``       of the mean of ``k2``, which is not the KL
    =================  =========  ===================  ==========================================================

    A log-ratio beyond the bound has neither an own gradient nor a weighted one. That ``own`` is the KL's gradient is shown in
    arXiv:2510.01555. An absent anchor raises ``ColumnError``.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    policies = log_prob, ref_log_prob, old_log_prob, rollout_log_prob
    return shaped(0.5 * log_ratio.square(), log_ratio, policies, gradient, anchor, cap, importance_cap)
