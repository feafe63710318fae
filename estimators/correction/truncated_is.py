"""Truncated importance sampling: weigh by how much likelier the trainer finds what the sampler chose, up to a cap."""

import math
from typing import Annotated

import torch

from ...batch import Sequences
from ...numerics import bounded
from ...registry import Mean, PerToken, Report, correction
from ...registry.hyper import LogRatioBound, NonNegative, Positive
from .levels import Over, Weight, log_weight


@correction(
    claims=(
        "corrects-direction",
        "neutral-at-agreement",
    ),
    aliases=("tis",),
    scope="sequence",
    suits={"cap": ">= 1", "floor": "<= 1"},
    requires={"floor": "<= cap"},
    compat={
        "verl": "`rollout_is: token | sequence` is `level`, a single number as `rollout_is_threshold` is `cap`.",
        "trl": "`token_truncate` and `sequence_truncate` are `level`, `clip_max` is `cap` (3.0), `clip_min` is `floor`; `log_ratio_bound: null`.",
        "skyrl": "`tis_ratio_type: token` is `cap: 2.0`, `sequence` is `level: sequence, cap: 5.0`.",
        "openrlhf": "`is_correction_level: token, is_correction_mode: clip`: the threshold's numbers are `floor` and `cap`.",
        "slime": "`--use-tis`: `tis_clip` is `cap`, `tis_clip_low` is `floor`; `log_ratio_bound: null`.",
        "nemo-rl": "type `tis`; a correction without a type is `cap: null`, for GSPO at `level: sequence`; `log_ratio_bound: null`.",
        "areal": "`action: clamp` with `metric: ratio`: `level: token`, or `level: geometric` for its level `sequence`.",
        "roll": "`level` is the weight's type, `upper_bound` is `cap`; `log_ratio_bound: null`.",
        "ms-swift": "its sequence ratio is `level: geometric`, its threshold 2.0 is `cap`.",
    },
)
def truncated_is(
    old_log_prob: PerToken,
    rollout_log_prob: PerToken,
    sequences: Sequences,
    turns: PerToken | None = None,
    *,
    level: Over = "token",
    cap: Annotated[Positive | None, "the largest weight; null: no limit"] = 2.0,
    floor: Annotated[NonNegative, "the smallest weight"] = 0.0,
    log_ratio_bound: LogRatioBound = 20.0,
) -> tuple[Weight, Report]:
    r"""Multiply the loss by the capped ratio of trainer to sampler; ``masked-is`` drops what this one caps.

    .. math:: w_t = \operatorname{clip}\bigl(e^{D_t}, floor, cap\bigr), \qquad d_t = \ell^{old}_t - \ell^{roll}_t

    ``[N]``, without unit. :math:`D_t` is :math:`d_t` (``token``), its mean over the turn (``segment``) or over the sequence
    (``geometric``), or its sum over the sequence (``sequence``: unbiased, and the noisiest). ``cap: null`` truncates nothing but what lies
    beyond ``log_ratio_bound``, which gives way to a cap that reaches further. A token
    that the sampler did not score has :math:`d_t = 0`. Nothing is dropped, so it takes no ``denominator``; an empty sequence
    has no token to weigh. The raw mean is reported beside the one in effect. Level ``segment`` without ``turns`` raises
    ``ColumnError``, a floor above the cap ``ValueError``.
    """
    if cap is not None and floor > cap:
        raise ValueError(f"truncated-is has the floor {floor:g} above its cap {cap:g}.")
    reach = None if log_ratio_bound is None else max(log_ratio_bound, 0.0 if cap is None else math.log(cap))
    raw = bounded(log_weight(old_log_prob, rollout_log_prob, level, sequences, turns, reach), None).exp()
    weight = raw.clamp(floor, torch.finfo(raw.dtype).max if cap is None else min(cap, torch.finfo(raw.dtype).max))
    report = {"rollout_is_raw": Mean(raw), "rollout_is": Mean(weight), "rollout_is_clipfrac": Mean(weight != raw)}
    return (weight, None), report
