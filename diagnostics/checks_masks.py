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


def holes(sight: Sight) -> Found:
    """Find positions inside a turn that the mask leaves out; between two turns stands what a tool or a user said."""
    s, source, turns = sight.sequences, sight.batch.layout.source, sight["turns"]
    wrong = ~s.is_last & (s.next(source, 0) - source > 1) & (s.next(turns, 0) == turns)
    if (place := sight.first(wrong, "turns")) is not None:
        yield (
            "warning",
            Place("response_mask", place.sequence, place.token),
            f"after {share(wrong.sum(), sight.tokens)} tokens the mask is 0 inside their turn; this is the first",
            "what stands there was sampled but does not learn; if a tool said it, its turn has no number of its own",
            "compare the mask with the turns: only what stands between two turns is somebody else's",
        )


def of_prompt(sight: Sight) -> Found:
    """Find masks that are as long as the prompts, one by one."""
    prompts = sight["prompt_lengths"]
    if bool((prompts == sight.sequences.lengths).all()) and len(set(sight.batch.lengths)) > 1:
        yield (
            "error",
            Place("response_mask"),
            f"each of the {len(sight.batch)} sequences has as many sampled tokens as its prompt is long",
            "the mask is that of the prompts: what was asked is learned, and what was answered is not",
            "make the mask 1 from the end of the prompt to the end of the answer",
        )


def short(sight: Sight) -> Found:
    """Find tokens that the sampler scored and the mask leaves out; one value everywhere is a filler."""
    x, mask = sight.padded.get("rollout_log_prob"), sight.mask
    if x is None or mask is None or x.shape != mask.shape:
        return
    scored = (mask == 0) & (x < 0) & x.isfinite()
    if not bool(scored.any()) or bool((x[scored] == x[scored][0]).all()):
        return
    row, position = divmod(int(scored.flatten().to(torch.uint8).argmax()), x.shape[1])
    yield (
        "warning",
        Place("response_mask", row, position),
        f"the sampler reported log-probabilities at {share(scored.sum(), (mask == 0).sum())} positions where the mask is 0; the first is"
        f" {float(x[row, position]):.3g} (token counts positions of the padded row)",
        "these tokens were sampled but do not learn: the mask starts late, ends early, or is shifted",
        "look whether the end token is inside the mask, and whether mask and log-probabilities begin at the same position",
    )


CHECKS = (
    Check("mask-values", "Is the mask 0 or 1 everywhere?", values, bare=True),
    Check("no-tokens", "Is there any sampled token?", nothing, bare=True),
    Check("empty-sequences", "Has every sequence a sampled token?", empty),
    Check("padding-share", "Is at most 30 % of the padded batch padding?", padding, whole=True),
    Check("rewards-outside-mask", "Is every token reward on a sampled token?", rewards_outside, bare=True),
    Check("advantages-outside-mask", "Are there no advantages beside sampled tokens?", advantages_outside, bare=True),
    Check("mask-holes", "Is every turn inside the mask as a whole?", holes, ("turns",), cost="full"),
    Check("mask-of-prompt", "Does the mask cover answers, not prompts?", of_prompt, ("prompt_lengths",)),
    Check("mask-short", "Is every token that the sampler scored inside the mask?", short, bare=True),
)
