"""GAE: how far each token beat the critic, with later surprises discounted into it."""

from collections.abc import Mapping

from torch import Tensor

from ...batch import Sequences
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount
from .critic import Bootstrap, after_last


@advantage_estimator(
    claims=("rewards-better", "scale-equivariant", "causal", "zero-at-perfect-values"),
    paper="arXiv:1506.02438",
    scope="sequence",
    compat={
        "verl": "`gae`, with `whiten` after it; it is not zero at masked places there.",
        "skyrl": "`gae`, with `whiten` after it; it also decays through masked tokens and reads their values.",
        "openrlhf": "`gae`, with `{use: whiten, unbiased: false}` after it; the same where no token inside a response is masked.",
        "nemo-rl": "GeneralizedAdvantageEstimator: gae_gamma is gamma, gae_lambda is lam; it whitens or not, which is `whiten`.",
        "areal": "discount is gamma, gae_lambda is lam; bootstrap: truncated, with the value of its last position as bootstrap_values.",
        "slime": "gamma and lambda; the same where no token inside a response is masked.",
        "roll": "lam: 0.95 by default; the same where no token inside a response is masked.",
        "tunix": "`gae`, with `whiten` after it.",
        "rlax": "truncated_generalized_advantage_estimation over a trajectory that ends.",
    },
)
def gae(
    token_rewards: PerToken,
    old_values: PerToken,
    sequences: Sequences,
    truncated: PerSequence | None = None,
    bootstrap_values: PerSequence | None = None,
    *,
    gamma: Discount = 1.0,
    lam: Discount = 1.0,
    bootstrap: Bootstrap = "never",
) -> Mapping[str, Tensor]:
    r"""Sum the critic's errors backwards; the one estimator here that needs a critic, and that gives it its targets (``returns``).

    .. math:: \delta_t = r_t + \gamma v_{t+1} - v_t, \qquad A_t = \delta_t + \gamma\lambda\, A_{t+1}, \qquad R_t = A_t + v_t

    ``[N]``, in units of the reward. :math:`t + 1` is the next *sampled* token: what a tool wrote in between costs no discount and its
    values are never read. After the last token the value is 0; with ``bootstrap: truncated`` it is ``bootstrap_values`` for sequences
    that the length limit cut, and a missing column raises ``ColumnError``. Equation 16 of the paper.
    """
    last = after_last("gae", bootstrap, truncated, bootstrap_values)
    surprise = token_rewards + gamma * sequences.next(old_values, last) - old_values
    advantages = sequences.reverse_scan(surprise, gamma * lam)
    return {"advantages": advantages, "returns": advantages + old_values}
