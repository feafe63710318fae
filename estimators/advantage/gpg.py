"""GPG: group differences, made larger by as much as tied groups make the step smaller."""

from typing import Annotated, Literal

import torch
from pydantic import Field

from ...batch import Sequences
from ...numerics import safe_divide
from ...registry import PerSequence, advantage_estimator
from ...registry.hyper import Positive
from .groups import Singleton, centred

Counting = Annotated[Literal["untied", "nonzero-rewards"], Field(description="which sequences count as the ones that teach")]


@advantage_estimator(
    claims=("rewards-better", "shift-invariant", "scale-equivariant", "group-centred"),
    paper="arXiv:2504.02546",
    scope="step",
    compat={
        "verl": "`gpg`, count: nonzero-rewards, singleton: reward; its argument alpha is ignored there.",
    },
)
def gpg(
    rewards: PerSequence,
    sequences: Sequences,
    *,
    count: Counting = "untied",
    f_norm: Annotated[Positive, "what every advantage is divided by"] = 1.0,
    singleton: Singleton = "zero",
) -> PerSequence:
    r"""Scale what is left of ``grpo`` without a deviation by how few sequences teach anything: a step of mostly tied groups loses no size.

    .. math:: A_i = \frac{\alpha}{F} \Bigl(s_i - \operatorname{mean}_g s\Bigr), \qquad \alpha = \frac{B}{C}

    ``[S]``, in units of the reward (over ``f_norm``); of the :math:`B` sequences of the step :math:`C` count: those whose group is not tied, or
    as in verl those whose reward is not 0 (``nonzero-rewards``, where rewards of -1 and 1 always give :math:`\alpha = 1`). Where none counts
    all is 0. Ties and singletons as in ``grpo``. A batch without ``group_ids`` raises ``ColumnError``.
    """
    apart, _ = centred(rewards, sequences, singleton)
    marks = rewards != 0
    if count == "untied":
        marks = sequences.group_spread(sequences.group_sum((apart != 0).to(apart.dtype))) > 0
    fraction = sequences.moments(marks.to(apart.dtype))[1]
    scale = safe_divide(torch.ones_like(fraction), fraction) / f_norm
    return (apart * scale).to(rewards.dtype)
