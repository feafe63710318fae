"""80/20 for any policy loss: only tokens at which the policy is undecided take part."""

from typing import Annotated

from ...batch import Sequences
from ...numerics import quantile
from ...registry import PerToken, correction
from ...registry.hyper import Fraction
from .levels import Keep


@correction(
    aliases=("top-entropy",),
    paper="arXiv:2506.01939",
    scope="step",
    compat={
        "trl": "top_entropy_quantile in its GMPO trainer, whose mean is over the kept tokens; with its other losses use the policy loss."
    },
)
def high_entropy(
    entropy: PerToken,
    sequences: Sequences,
    *,
    top_entropy_quantile: Annotated[Fraction, "share of the step's tokens, those of highest entropy, that stay"] = 0.2,
) -> Keep:
    r"""Keep the tokens of highest entropy in the step and drop the others before the policy loss sees them.

    .. math:: t \in K \iff H_t \ge q_{1 - \rho}(H)

    ``[N]`` bool, no weight. The policy loss ``high-entropy`` silences the others inside ``ppo-clip`` instead; here any loss may follow.
    One that looks at whole sequences (GMPO) needs ``decide: measure``, and its means over a sequence are then over the kept tokens.
    TRL's GMPO also leaves the others out of the denominator (``kept``). The quantile is over all tokens of the step, with
    ``decide: measure`` also over all ranks. A token whose entropy is NaN stays, so that it is seen.
    """
    everyone = sequences.ranks.gather(entropy.detach())
    return None, ~(entropy.detach() < quantile(everyone, 1 - top_entropy_quantile))
