"""PRIME: a reward model that was only ever told outcomes pays every token by how much likelier it makes it."""

from collections.abc import Mapping
from typing import Annotated

from torch import Tensor

from ...batch import Sequences
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Discount, NonNegative, Positive
from .groups import Singleton
from .rloo import rloo
from .whiten import whiten


@advantage_estimator(aliases=("prime_rloo",), paper="arXiv:2502.01456", scope="step", claims=("rewards-better",))
def prime(
    rewards: PerSequence,
    prm_log_prob: PerToken,
    ref_log_prob: PerToken,
    sequences: Sequences,
    *,
    beta: Annotated[Positive, "implicit reward per nat of the reward model's log-ratio"] = 0.05,
    reward_model_gamma: Discount = 1.0,
    verifier_gamma: Discount = 1.0,
    epsilon: Annotated[NonNegative, "added to the variance whose root divides"] = 1e-8,
    singleton: Singleton = "zero",
) -> Mapping[str, Tensor]:
    r"""Add the implicit reward of each token to ``rloo``'s, sum what is still to come and whiten: dense rewards without labels of steps.

    .. math:: q_t = \beta\,(\ell^{prm}_t - \ell^{ref}_t), \qquad x_t = \frac{n\, q_t - \sum_{j \in g} \bar q_j}{n - 1}, \qquad
        R_t = \sum_{u \ge t} \gamma_q^{u - t} x_u + \gamma_s^{T - t} A^{rloo}_i

    ``[N]``; advantages without unit, ``returns`` in units of the reward. :math:`\bar q_j` is the mean of :math:`q` over the tokens of a
    sequence and :math:`n` the size of its group. Alone in its group a sequence has no :math:`x_t` and no outcome either, or with
    ``singleton: reward`` both unchanged. Whitened as in ``reinforce-plus-plus``.
    """
    implicit = beta * (prm_log_prob - ref_log_prob)
    size = sequences.group_spread(sequences.group_size())
    total = sequences.group_spread(sequences.group_sum(sequences.mean(implicit.to(size.dtype))))
    others = (size - 1).clamp(min=1)
    process = (sequences.spread(size) * implicit - sequences.spread(total)) / sequences.spread(others)
    alone = sequences.spread(size) == 1
    process = process.where(~alone, implicit.to(process.dtype) if singleton == "reward" else 0.0)
    outcome = sequences.place_last(rloo(rewards, sequences, singleton=singleton))
    returns = sequences.reverse_scan(process, reward_model_gamma) + sequences.reverse_scan(outcome, verifier_gamma)
    return {"advantages": whiten(returns, sequences, epsilon=epsilon).to(rewards.dtype), "returns": returns.to(rewards.dtype)}
