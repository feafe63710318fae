"""k3: the log-ratio with a control variate that takes out most of its noise."""

import torch

from ...numerics import bounded_log_ratio
from ...registry import PerToken, kl_estimator
from ...registry.hyper import LogRatioBound
from .gradient import Anchor, Cap, Gradient, ImportanceCap, shaped


@kl_estimator(
    aliases=("low_var_kl",),
    paper="arXiv:2402.03300",
    scope="token",
    suits={"cap": "null"},
    claims=("zero-at-equality", "non-negative", "unbiased"),
    compat={
        "verl": "`low_var_kl`, `k3`: cap: 10. `k3+`: also gradient: straight-through.",
        "skyrl": "`k3`: cap: 10.",
        "openrlhf": "`k3`: cap: 10 (its input bound of 10 binds only past that cap); with unbiased_gradient also gradient: unbiased.",
        "areal": "`k3`: log_ratio_bound: null, cap: 10.",
        "roll": "`k3`: log_ratio_bound: null, cap: 10.",
        "slime": "`k3`: log_ratio_bound: null. `low_var_kl` also cap: 10; use-unbiased-kl also gradient: importance-token, "
        "importance_cap: null.",
        "nemo-rl": "`k3`: cap: 10, gradient: importance-token, importance_cap: null; anchor: current (rollout by "
        "use_on_policy_kl_approximation).",
        "trl": "`beta` without use_bias_correction_kl: log_ratio_bound: null; its default is `k3-importance`.",
        "liger-kernel": "`beta` without use_bias_correction_kl: log_ratio_bound: null.",
        "ms-swift": "cap: 10.",
        "tunix": "`low_var_kl`: log_ratio_bound: null; its clamp is cap.",
    },
)
def k3(
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
    r"""Return GRPO's estimate: unbiased like ``k1``, never negative, and quiet near equality.

    .. math:: k_3 = e^{-d} - 1 + d, \qquad d = \ell - \ell^{ref}

    ``[N]``, in nats. The gradient, with :math:`w = \min(e^{\ell - \ell^{anchor}}, importance\_cap)`:

    =================  =========  ===============  ==============================================================
    gradient           value      by ``log_prob``  in expectation
    =================  =========  ===============  ==============================================================
    own                ``k3``     ``1 - e^-d``     of the other KL, of the reference from the policy; on policy
    straight-through   ``k3``     ``d``            of the KL, on policy
    unbiased           ``k3``     ``w d``          of the KL, off policy too
    importance-token   ``w k3``   ``w d``          of the KL, off policy too: see ``k3-importance``
    =================  =========  ===============  ==============================================================

    ``own`` grows exponentially where the policy has lost a token of the reference. verl clamps the result: ``cap: 10``, which takes the
    pull from the tokens that have drifted most (:math:`d < -2.611`); ``k3-huber`` bounds it and keeps it. A log-ratio beyond
    ``log_ratio_bound`` has neither an own gradient nor a weighted one. Equation 4 of the paper; that ``own`` is no gradient of the KL is
    shown in arXiv:2510.01555 and arXiv:2512.21852. An absent anchor raises ``ColumnError``.
    """
    log_ratio = bounded_log_ratio(log_prob, ref_log_prob, log_ratio_bound)
    estimate = torch.expm1(-log_ratio) + log_ratio  # expm1 keeps what exp(x) - 1 would round away
    policies = log_prob, ref_log_prob, old_log_prob, rollout_log_prob
    return shaped(estimate, log_ratio, policies, gradient, anchor, cap, importance_cap, cancels=True)
