"""Masks and padding: what counts as a sampled token, and what was found where none is."""

import torch

from .finding import Place
from .sight import Check, Found, Sight, share

PADDING = 0.3
"""Share of padding above which it is reported."""


def values(sight: Sight) -> Found:
    """Find what is neither 0 nor 1 in a mask."""
    if sight.mask is None or sight.mask.dtype == torch.bool:
        return
    wrong = (sight.mask != 0) & (sight.mask != 1)
    if n := int(wrong.sum()):
        row, column = divmod(int(wrong.flatten().to(torch.uint8).argmax()), sight.mask.shape[1])
        value = float(sight.mask[row, column])
        yield (
            "error",
            Place("response_mask", row, column),
            f"{share(n, wrong.numel())} values are neither 0 nor 1; the first is {value:g} (token counts positions of the padded row)",
            "a mask that multiplies weighs such a token; a mask that selects drops or keeps it, and nobody said which",
            "make the mask boolean where it is made: mask = ids.ne(pad_id) & sampled",
        )


def padding(sight: Sight) -> Found:
    """Compare the positions outside with the sampled tokens; a batch's own padding reached no loss, so there only what cutting would save."""
    layout = sight.batch.layout
    if layout.width is None or not sight.tokens or (sight.mask is None and layout.width <= max(sight.batch.lengths)):
        return
    gone = layout.positions - sight.tokens
    if gone > PADDING * layout.positions:
        longest = max(sight.batch.lengths)
        yield (
            "warning",
            Place("response_mask"),
            f"{share(gone, layout.positions)} positions carry no sampled token; the rows are {layout.width} wide, the longest has {longest}",
            "the model computes on them; where a mean divides by positions, they also pull it towards 0",
            "pad to the longest row of the batch, sort by length, or pack sequences end to end (Batch.from_packed)",
        )


def nothing(sight: Sight) -> Found:
    """Find batches without any token."""
    if not sight.tokens:
        yield (
            "error",
            Place("response_mask"),
            f"none of the {len(sight.batch)} sequences has a sampled token",
            "the step learns nothing, whatever its loss shows",
            "look whether the mask is 0 everywhere, inverted, or was made for the prompt",
        )


def empty(sight: Sight) -> Found:
    """Find sequences without any token."""
    n = sum(length == 0 for length in sight.batch.lengths)
    if sight.tokens and n:
        yield (
            "warning",
            Place(sequence=sight.batch.lengths.index(0)),
            f"{share(n, len(sight.batch))} sequences have no sampled token; this is the first",
            "it earns a reward and counts in its group's mean, but no token of it learns",
            "drop it before rewards are given, or look why its mask is 0 everywhere",
        )


def _outside(sight: Sight, column: str) -> tuple[int, Place, float] | None:
    x = sight.padded.get(column)
    if x is None or sight.mask is None or x.shape != sight.mask.shape:
        return None
    wrong = (sight.mask == 0) & (x != 0)  # NaN is not 0 either
    if not (n := int(wrong.sum())):
        return None
    row, position = divmod(int(wrong.flatten().to(torch.uint8).argmax()), x.shape[1])
    return n, Place(column, row, position), float(x[row, position])


def rewards_outside(sight: Sight) -> Found:
    """Find rewards that no token receives."""
    if told := _outside(sight, "token_rewards"):
        n, place, value = told
        yield (
            "error",
            place,
            f"rewards where the mask is 0: {n}; the first is {value:g} (token counts positions of the padded row)",
            "no sampled token is paid for them: the reward is lost, or the mask is shifted against it",
            "pay the last sampled token, or give masked_rewards='to-sequence'; look for an index that is off by one",
        )


def advantages_outside(sight: Sight) -> Found:
    """Find advantages that no token has."""
    if told := _outside(sight, "advantages"):
        n, place, value = told
        yield (
            "warning",
            place,
            f"advantages where the mask is 0: {n}; the first is {value:g} (token counts positions of the padded row)",
            "whatever averages or whitens them without the mask takes them in; a shifted mask looks like this too",
            "select by the mask before any mean or standard deviation is taken",
        )


CHECKS = (
    Check("mask-values", "Is the mask 0 or 1 everywhere?", values, bare=True),
    Check("no-tokens", "Is there any sampled token?", nothing, bare=True),
    Check("empty-sequences", "Has every sequence a sampled token?", empty),
    Check("padding-share", "Is at most 30 % of the padded batch padding?", padding, whole=True),
    Check("rewards-outside-mask", "Is every token reward on a sampled token?", rewards_outside, bare=True),
    Check("advantages-outside-mask", "Are there no advantages beside sampled tokens?", advantages_outside, bare=True),
)
