"""GAE with two lambdas: the critic learns from what really came, the policy from sums that do not drown in noise."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from ...batch import Sequences
from ...numerics import accumulator
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount, Positive
from .critic import Bootstrap, after_last

LengthAdaptiveAlpha = Annotated[
    Positive | None, "the policy's lambda is 1 - 1 / (this x the sequence's tokens), at least 0; null: lam_policy"
]


@advantage_estimator(
    claims=("rewards-better", "scale-equivariant", "causal", "zero-at-perfect-values"),
    aliases=("vc_ppo",),
    paper="arXiv:2504.05118",
    scope="sequence",
    compat={
        "nemo-rl": "gae_lambda_value is lam_value, gae_lambda_policy is lam_policy; length_adaptive_alpha as there.",
    },
)
def gae_decoupled(
    token_rewards: PerToken,
    old_values: PerToken,
    sequences: Sequences,
    truncated: PerSequence | None = None,
    bootstrap_values: PerSequence | None = None,
    *,
    gamma: Discount = 1.0,
    lam_value: Discount = 1.0,
    lam_policy: Discount = 0.95,
    length_adaptive_alpha: LengthAdaptiveAlpha = None,
    bootstrap: Bootstrap = "never",
) -> Mapping[str, Tensor]:
    r"""Run ``gae`` twice on the same errors, with one :math:`\lambda` for the targets of the critic and another for the policy.

    .. math:: A_t = \delta_t + \gamma\lambda_\pi\, A_{t+1}, \qquad R_t = v_t + \sum_{u \ge t} (\gamma\lambda_v)^{u - t}\, \delta_u, \qquad
        \lambda_\pi = 1 - \frac{1}{\max(1,\, \alpha\, n_i)}

    ``[N]``, in units of the reward. With ``length_adaptive_alpha`` (0.05 in the paper) each sequence has the :math:`\lambda_\pi` of its
    length :math:`n_i` in sampled tokens, which replaces ``lam_policy``; up to :math:`1 / \alpha` tokens that is 0. Holes and the end as
    in ``gae``. Two lambdas: arXiv:2503.01491.
    """
    last = after_last("gae-decoupled", bootstrap, truncated, bootstrap_values)
    surprise = token_rewards + gamma * sequences.next(old_values, last) - old_values
    decay: float | Tensor = gamma * lam_policy
    if length_adaptive_alpha is not None:
        tokens = sequences.lengths.to(accumulator(surprise))
        decay = sequences.spread(gamma * (1 - 1 / (length_adaptive_alpha * tokens).clamp(min=1)))
    targets = sequences.reverse_scan(surprise, gamma * lam_value) + old_values
    return {"advantages": sequences.reverse_scan(surprise, decay), "returns": targets}
