"""DRO: fit the log-ratio to the advantage, with a square in the place of the clip."""

from typing import Annotated, Literal

from ...batch import Sequences
from ...registry import Mean, PerToken, Report, policy_loss
from ...registry.hyper import Positive

ImportanceSamplingLevel = Annotated[
    Literal["token", "sequence"], "which log-ratio is squared: each token's own, or the sum over its sequence"
]


@policy_loss(
    aliases=("kimi", "kimi15", "kimi-k1-5"),
    paper="arXiv:2405.19107",
    scope="sequence",
    claims=("on-policy-gradient", "pulls-back"),
    compat={
        "verl": "`dro`: dro_beta, which has no default there.",
        "roll": "`kimi15`: kimi15_tau is dro_beta, 0.1 by default.",
        "tinker": "`dro`: beta is dro_beta; old_log_prob holds the sampler's; token-sum.",
        "trinity-rft": "`rec` with regularizer k2: dro_beta is twice its regularizer_coef.",
    },
)
def dro(
    log_prob: PerToken,
    old_log_prob: PerToken,
    advantages: PerToken,
    sequences: Sequences,
    *,
    dro_beta: Annotated[Positive, "weight of half the squared log-ratio"] = 0.05,
    importance_sampling_level: ImportanceSamplingLevel = "token",
) -> tuple[PerToken, Report]:
    r"""Pull each token's log-ratio back by its square; unlike ``ppo-clip`` old samples need no ratio, and nothing is ever silent.

    .. math:: L_t = -A_t\, \ell_t + \tfrac{\beta}{2}\, d_t^2, \qquad d_t = \ell_t - \ell^{old}_t

    ``[N]``, in advantage times nats. Kimi k1.5's loss (arXiv:2501.12599) is the same with :math:`\tau` for :math:`\beta`. Both papers
    square the log-ratio of the whole sequence, and frameworks that of each token. At level ``sequence`` each token carries
    :math:`d_t \sum_s d_s`, so that a sequence's tokens add up to the papers' square, cross terms included.
    """
    moved = log_prob - old_log_prob
    whole = moved if importance_sampling_level == "token" else sequences.spread(sequences.sum(moved))
    return -advantages * log_prob + 0.5 * dro_beta * (moved * whole), {"ppo_kl": Mean(-moved.detach())}
