"""Pass@k training in closed form: what each answer adds to the chance that at least one of k is right."""

from typing import Annotated

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import log_choose, safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Epsilon

Draws = Annotated[int, Field(ge=1, le=65536, description="how many answers may be given, of which one must be right")]


@advantage_estimator(paper="arXiv:2508.10751", scope="group")
def passk_analytic(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    k: Draws = 4,
    threshold: Annotated[float, Field(allow_inf_nan=False, description="a reward above this is right")] = 0.5,
    epsilon: Epsilon = 1e-6,
) -> PerSequence:
    r"""Average GRPO's advantage over all ways to draw :math:`k` answers that earn 1 if one of them is right; ``grpo-passk`` sees the best alone.

    .. math:: \rho = 1 - \frac{\binom{n-c}{k}}{\binom{n}{k}}, \quad \sigma = \sqrt{\rho\,(1 - \rho)}, \quad
        A_{right} = \frac{1 - \rho}{\sigma + \epsilon}, \quad A_{wrong} = \frac{1 - \rho - \binom{n-c-1}{k-1} / \binom{n-1}{k-1}}{\sigma + \epsilon}

    ``[S]``, without unit; :math:`c` of the :math:`n` sequences of a group are right. A group with none right gives 0, one with fewer than
    :math:`k` wrong answers is solved and gives 0, and so does one with fewer than :math:`k` sequences.
    """
    right = rewards > threshold
    n = sequences.group_spread(sequences.group_size())
    wrong = n - sequences.group_spread(sequences.group_sum(right.to(n.dtype)))
    enough = n >= k
    whole, others = torch.where(enough, n, float(k)), torch.where(enough, n - 1, float(k - 1))
    none = (log_choose(wrong, k) - log_choose(whole, k)).exp()
    without = (log_choose(wrong - 1, k - 1) - log_choose(others, k - 1)).exp()
    sigma = (none * (1 - none)).clamp(min=0).sqrt()
    gain = torch.where(right, none, none - without)
    return torch.where(enough & (wrong < n), safe_divide(gain, sigma + epsilon), 0.0).to(rewards.dtype)
