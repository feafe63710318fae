"""RLSD: the judge says whether an answer was good, the teacher says which of its tokens made it so."""

from typing import Annotated

import torch

from ...registry import PerToken, advantage_estimator
from ...registry.hyper import ClipBelow, Fraction


@advantage_estimator(
    claims=(
        "rewards-better",
        "scale-equivariant",
    ),
    aliases=("rlsd_reweight",),
    paper="arXiv:2604.03128",
    scope="token",
    compat={"ms-swift": "use `rlsd` after the estimator, with its lam, clip_range and negative_only."},
)
def rlsd(
    advantages: PerToken,
    teacher_log_prob: PerToken,
    old_log_prob: PerToken,
    *,
    lam: Annotated[Fraction, "share of the teacher's agreement in the weight; the rest is 1"] = 0.5,
    clip_range: Annotated[ClipBelow, "how far the agreement may lie from 1"] = 0.2,
    negative_only: Annotated[bool, "whether only negative advantages are weighed"] = False,
) -> PerToken:
    r"""Weigh each advantage by how much the teacher agrees with its sign; unlike ``opd`` it never turns one around.

    .. math:: A'_t = A_t \Bigl[(1 - \lambda) + \lambda\, \operatorname{clip}\Bigl(e^{\operatorname{sgn}(A_t)
        (\ell^{teacher}_t - \ell^{old}_t)},\, 1 - c,\, 1 + c\Bigr)\Bigr]

    ``[N]``, in units of the advantage; each moves by at most the fraction :math:`\lambda c`. ``negative_only`` leaves advantages that are
    not negative as they are.
    """
    agreement = (advantages.sign() * (teacher_log_prob - old_log_prob)).exp().clamp(1 - clip_range, 1 + clip_range)
    weighed = advantages * ((1 - lam) + lam * agreement)
    return torch.where(advantages < 0, weighed, advantages) if negative_only else weighed
