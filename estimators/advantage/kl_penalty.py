"""A price on leaving the reference, paid by the token that leaves and by no other."""

from typing import Annotated, Literal

from pydantic import Field

from ...registry import PerToken, advantage_estimator
from ...registry.hyper import LogRatioBound, NonNegative
from ..kl.gradient import Cap
from ..kl.k1 import k1
from ..kl.k2 import k2
from ..kl.k3 import k3

KlType = Annotated[Literal["k1", "k2", "k3"], Field(description="which estimate of the KL is taken")]
_ESTIMATES = {"k1": k1, "k2": k2, "k3": k3}


@advantage_estimator(
    scope="token",
    claims=("rewards-better",),
    compat={
        "slime": "use `[{use: grpo, scale: none}, {use: kl-penalty, log_ratio_bound: null}, whiten]` for reinforce_plus_plus_baseline.",
        "nemo-rl": "use `[{use: grpo, scale: none}, {use: kl-penalty, cap: 10}, batch-normalise]` for reinforce_plus_plus with use_kl_in_reward.",
    },
)
def kl_penalty(
    advantages: PerToken,
    old_log_prob: PerToken,
    ref_log_prob: PerToken,
    *,
    kl_coef: Annotated[NonNegative, "price of the KL [advantage per nat]"] = 0.001,
    kl_type: KlType = "k1",
    cap: Cap = None,
    log_ratio_bound: LogRatioBound = 20.0,
) -> PerToken:
    r"""Take the token's own KL from its advantage; the KL in the reward is also paid by all tokens *before* it, and by its whole group.

    .. math:: A'_t = A_t - \beta\, k_t, \qquad k_t = k(\ell^{old}_t, \ell^{ref}_t)

    ``[N]``, in units of the advantage; ``kl_coef`` :math:`\beta` is in those per nat. It stands in a chain, after the estimator and before a
    normaliser.
    """
    kl = _ESTIMATES[kl_type](old_log_prob, ref_log_prob, log_ratio_bound=log_ratio_bound, cap=cap)
    return advantages - kl_coef * kl
