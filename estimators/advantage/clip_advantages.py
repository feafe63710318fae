"""Advantages within bounds: no token pulls more than so hard."""

from typing import Annotated

from ...registry import PerToken, advantage_estimator
from ...registry.hyper import Positive


@advantage_estimator(
    aliases=("advantage_clip",),
    scope="token",
    claims=("rewards-better",),
    compat={
        "roll": "advantage_clip.",
        "nemo-rl": "advantage_clip_low and advantage_clip_high, after it has normalised.",
    },
)
def clip_advantages(advantages: PerToken, *, advantage_clip: Annotated[Positive, "advantages are clamped to +- this"] = 10.0) -> PerToken:
    r"""Cut the advantages off at :math:`\pm c`; unlike ``whiten`` it moves outliers only.

    .. math:: A'_t = \operatorname{clip}(A_t,\, -c,\, c)

    ``[N]``, in units of the advantage, like ``advantage_clip``.
    """
    return advantages.clamp(-advantage_clip, advantage_clip)
