"""The soft overlong punishment: an answer that nears the length limit pays for it little by little."""

from typing import Annotated, Literal

from pydantic import Field

from ...batch import Sequences
from ...registry import ColumnError, PerSequence, PerToken, reward_term
from ...registry.hyper import Count, NonNegative

MaxLength = Annotated[Count, Field(description="tokens that a response may have")]
Buffer = Annotated[Count, Field(description="tokens before that limit over which the punishment grows")]

Length = Annotated[
    Literal["sampled", "response"], "what counts as length: sampled tokens, or all up to the last sampled one, tools' output included"
]


@reward_term(
    aliases=("soft_overlong_punishment", "reward_overlong_penalty"),
    paper="arXiv:2503.14476",
    requires={"overlong_buffer_len": "<= max_resp_len"},
    compat={
        "verl": "use `overlong` with `bounded: false` and `length: response`; it counts attended tokens, also those of tools.",
        "areal": "use `overlong` with `bounded: false`; it counts the tokens of the loss mask.",
        "nemo-rl": "use `overlong` with `bounded: false`; without given lengths it counts the first assistant message only.",
        "ms-swift": "use `overlong` with `bounded: false`.",
        "openrlhf": "use `overlong`; the excess is capped at the buffer.",
        "trl": "use `overlong` with `penalty_factor: 1`; get_soft_overlong_punishment is a reward function of its own.",
    },
)
def overlong(
    rewards: PerSequence,
    sequences: Sequences,
    positions: PerToken | None = None,
    *,
    max_resp_len: MaxLength,
    overlong_buffer_len: Buffer,
    penalty_factor: Annotated[NonNegative, "what a response at the limit pays [reward]"] = 1.0,
    bounded: Annotated[bool, "whether what lies past the limit costs no more; false: it costs ever more"] = True,
    length: Length = "sampled",
) -> PerSequence:
    r"""Take from the reward what the response exceeds the start of the buffer by; unlike ``stop-properly`` it warns before the limit.

    .. math:: s'_i = s_i - p \cdot \operatorname{clip}\Bigl(\frac{L_i - (M - B)}{B},\, 0,\, 1\Bigr)

    ``[S]``, in units of the reward, like ``penalty_factor`` :math:`p`; :math:`M` is ``max_resp_len`` and :math:`B` the buffer.
    ``bounded: false`` takes away the 1, so that what lies past the limit costs ever more. :math:`L_i` counts sampled tokens, so a tool's
    output is free; with ``length: response`` it reaches to the ``positions`` of the last sampled token, tools' output included, and a
    missing column raises ``ColumnError``.
    """
    if length == "sampled":
        tokens = sequences.lengths.to(rewards.dtype)
    elif positions is None:
        raise ColumnError("overlong with length='response' also needs 'positions', which the batch does not bring.")
    else:
        tokens = (sequences.max(positions.to(rewards.dtype)) + 1).clamp(min=0)
    excess = (tokens - (max_resp_len - overlong_buffer_len)) / overlong_buffer_len
    excess = excess.clamp(min=0, max=1 if bounded else None)
    return rewards - penalty_factor * excess
