"""IcePop: trust the ratio to the sampler inside a band around 1, and discard the token outside."""

from typing import Annotated

from ...numerics import bounded
from ...registry import PerToken, correction
from ...registry.hyper import LogRatioBound, NonNegative, Positive
from .levels import Both, distance, ratio_within


@correction(
    claims=(
        "corrects-direction",
        "neutral-at-agreement",
    ),
    paper="arXiv:2510.18855",
    scope="token",
    suits={"lower": "<= 1", "upper": ">= 1"},
    requires={"lower": "<= upper"},
    compat={
        "verl": '`rollout_is: token, rollout_is_threshold: "0.5_5.0"`, with `denominator: original`.',
        "nemo-rl": "type `icepop`: the two ratios are `lower` and `upper`; `log_ratio_bound: null` and `denominator: original`.",
        "openrlhf": "`is_correction_level: token, is_correction_mode: mask`, with `denominator: original`.",
        "slime": "the custom function `icepop`: `tis_clip_low` and `tis_clip` are `lower` and `upper`, with `denominator: original`.",
        "skyrl": "`rollout_is` has the current policy in the place of the old one: use the policy loss `rollout-is`.",
    },
)
def icepop(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    *,
    lower: Annotated[NonNegative, "a token with a smaller ratio is dropped"] = 0.5,
    upper: Annotated[Positive, "a token with a larger ratio is dropped"] = 5.0,
    strict: Annotated[bool, "whether a token exactly on a bound is dropped too"] = False,
    log_ratio_bound: LogRatioBound = 20.0,
) -> Both:
    r"""Weigh each token by its own ratio of trainer to sampler inside a band, and drop it outside; ``masked-is`` has wider levels too.

    .. math:: w_t = e^{d_t}, \qquad \text{kept where } lower \le e^{d_t} \le upper, \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, without unit; with ``strict`` a token exactly on a bound is dropped too. No token looks at another, so no sequence is
    needed. ``denominator: original`` is the paper's (a weight of 0), ``kept`` lets the others count for more. A token that the sampler
    did not score has the weight 1. ``log_ratio_bound`` bounds the weight alone, never the verdict. Bounds that cross raise ``ValueError``.
    """
    far = distance(old_log_prob, rollout_log_prob)
    return bounded(far, log_ratio_bound).exp(), ratio_within(far, lower, upper, strict=strict)
