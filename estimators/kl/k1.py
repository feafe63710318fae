"""k1: the log-ratio itself."""

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Anchor, Cap, Gradient, ImportanceCap, shaped


@kl_estimator(
    aliases=("kl",),
    paper="http://joschu.net/blog/kl-approx.html",
    scope="token",
    suits={"apply": "reward", "cap": "null"},
    claims=("zero-at-equality", "unbiased"),
    compat={
        "verl": "`kl`, `k1`: log_ratio_bound: null. `k1+`: also gradient: straight-through.",
        "skyrl": "`k1`: log_ratio_bound: null.",
        "openrlhf": "`k1`: log_ratio_bound: null, cap: 10; with unbiased_gradient also gradient: unbiased.",
        "areal": "`k1`: log_ratio_bound: null, cap: 10.",
        "roll": "`kl`: log_ratio_bound: null.",
        "slime": "`k1`: log_ratio_bound: null; with an importance ratio also gradient: importance-token, importance_cap: null.",
        "nemo-rl": "`k1`: cap: 10, gradient: importance-token, importance_cap: null; anchor: current (rollout by "
        "use_on_policy_kl_approximation).",
        "tunix": "`kl`: log_ratio_bound: null; its clamp is cap.",
    },
)
def k1(
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
    r"""Return the log-ratio: unbiased like ``k3`` but noisier and of either sign; for the reward, not for the loss.

    .. math:: k_1 = d = \ell - \ell^{ref}

    ``[N]``, in nats. The gradient, with :math:`w = \min(e^{\ell - \ell^{anchor}}, importance\_cap)`:

    =================  ========  ===============  ===========================================================
    gradient           value     by ``log_prob``  in expectation
    =================  ========  ===============  ===========================================================
    own                ``d``     ``1``            nothing: it pulls nowhere, whatever the reference
    straight-through   ``d``     ``d``            of the KL, on policy
    unbiased           ``d``     ``w d``          of the KL, off policy too
    importance-token   ``w d``   ``w (d + 1)``    of the KL, off policy too; the 1 is noise
    =================  ========  ===============  ===========================================================

    A log-ratio beyond the bound has neither an own gradient nor a weighted one. That ``own`` is no loss is shown in arXiv:2506.09477
    and arXiv:2512.21852. An absent anchor raises ``ColumnError``.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    policies = log_prob, ref_log_prob, old_log_prob, rollout_log_prob
    return shaped(log_ratio, log_ratio, policies, gradient, anchor, cap, importance_cap)
