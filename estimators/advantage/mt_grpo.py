"""MT-GRPO: a turn is praised for what it did itself, beside the praise for the outcome."""

from typing import Annotated, Literal

from pydantic import Field

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, PerToken, advantage_estimator
from ...registry.hyper import Epsilon
from .groups import Singleton, centred
from .turns import Turns

Share = Annotated[float, Field(ge=0, allow_inf_nan=False, description="how much a turn's own reward counts beside the outcome")]


@advantage_estimator(paper="arXiv:2505.11821", scope="group", claims=("rewards-better", "shift-invariant", "scale-invariant"))
def mt_grpo(
    rewards: PerSequence,
    turn_rewards: PerSequence,
    turns: PerToken,
    sequences: Sequences,
    *,
    turn_advantage_coef: Share = 1.0,
    scale: Annotated[Literal["group-std", "none"], "what divides: the deviation of the group, or nothing"] = "group-std",
    epsilon: Epsilon = 1e-4,
    singleton: Singleton = "zero",
) -> PerToken:
    r"""Add to the advantage of ``grpo`` that of the token's turn among the same turns of its group; ``grpo-per-turn`` also looks ahead.

    .. math:: A_t = A_i + c\, A_{i,k(t)}, \qquad A_{i,k} = \frac{s_{i,k} - \operatorname{mean}_{g,k} s}{\operatorname{std}_{g,k} s + \epsilon}

    ``[N]``, without unit (``none``: in units of the reward). ``turn_rewards`` is ``[S, K]`` and ``turns`` counts from 0; turns past
    :math:`K` have the outcome only, as the last one in the paper. A turn counts among its peers if it has a sampled token. Ties and
    singletons as in ``grpo``, turn by turn. A batch without ``group_ids`` raises ``ColumnError``.
    """
    count = turn_rewards.shape[1]
    table = Turns.of(turns, count, sequences)
    outcome, deviation = centred(rewards, sequences, singleton)
    own, spread = centred(turn_rewards.flatten(), table.peers(sequences, count), singleton)
    if scale == "group-std":
        outcome, own = safe_divide(outcome, deviation + epsilon), safe_divide(own, spread + epsilon)
    return (sequences.spread(outcome) + turn_advantage_coef * table.spread(own)).to(rewards.dtype)
