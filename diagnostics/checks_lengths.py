"""Lengths: how much was cut, and how much of a step is one sequence."""

import torch

from .finding import Place
from .sight import Check, Found, Sight, share

CUT = 0.5
"""Share of truncated sequences above which it is reported."""
ONE = 0.5
"""Share of the tokens of a step that one of many sequences may have."""
MANY = 8
RUN = 8
"""Times that the last token is repeated before it is a tail."""


def truncated(sight: Sight) -> Found:
    """Count answers that were cut at the length limit."""
    cut = sight["truncated"] == 1
    if int(cut.sum()) > CUT * len(sight.batch):
        yield (
            "warning",
            sight.first(cut, "truncated") or Place("truncated"),
            f"{share(cut.sum(), len(sight.batch))} sequences were cut at the length limit; this is the first",
            "an answer that was cut earns nothing for what it had still to say: the policy learns to be short, not right",
            "a higher limit, reward: {use: overlong, ...}, or correction: drop-truncated",
        )


def untold(sight: Sight) -> Found:
    """Find many answers of exactly the greatest length, and nobody who says that they were cut."""
    if "truncated" in sight or len(sight.batch) < MANY:
        return
    most = max(sight.batch.lengths)
    n = sum(length == most for length in sight.batch.lengths)
    if n > CUT * len(sight.batch) and len(set(sight.batch.lengths)) > 1:
        yield (
            "warning",
            Place("truncated", sight.batch.lengths.index(most)),
            f"{share(n, len(sight.batch))} sequences have exactly {most} tokens, the most of all, and there is no column 'truncated'",
            "they were probably cut at a limit; without the column no rule can treat them apart, and the critic takes the cut for an end",
            "bring truncated [S]: 1 where the sampler stopped for length",
        )


def skewed(sight: Sight) -> Found:
    """Find one sequence that is most of the step."""
    most = max(sight.batch.lengths, default=0)
    if len(sight.batch) >= MANY and most > ONE * sight.tokens:
        yield (
            "warning",
            Place(sequence=sight.batch.lengths.index(most)),
            f"it has {share(most, sight.tokens)} of the tokens of {len(sight.batch)} sequences",
            "a mean over tokens is this sequence's mean: the short ones are diluted",
            "aggregation: seq-mean-token-mean weighs sequences alike; look whether a runaway answer should be cut",
        )


def tails(sight: Sight) -> Found:
    """Find answers that end in one token over and over."""
    s, ids = sight.sequences, sight["token_ids"]
    last = s.spread(ids[(s.offsets + s.lengths - 1).clamp(min=0, max=max(sight.tokens - 1, 0))])
    tail = _tail(sight, ids == last)
    long = tail >= RUN
    if len(sight.batch) > 1 and int(long.sum()) * 4 > len(sight.batch):
        place = int(long.to(torch.uint8).argmax())
        yield (
            "warning",
            Place("token_ids", place, int(s.lengths[place] - tail[place])),
            f"{share(long.sum(), len(sight.batch))} sequences end in one token {RUN} times or more; this one {int(tail[place])} times, token {int(last[int(s.offsets[place])])}",
            "if it is the end or padding token, the policy is taught to go on ending; if not, it is caught in a loop",
            "end the mask at the first end token; against loops see reward: repetition",
        )


def _tail(sight: Sight, same: torch.Tensor) -> torch.Tensor:
    """``[S]``: how many tokens at the end of each sequence hold ``same`` without a break."""
    s = sight.sequences
    place = torch.where(same, -1, s.places)
    broken = torch.full_like(s.lengths, -1).scatter_reduce(0, s.index, place, "amax")
    return s.lengths - 1 - broken


CHECKS = (
    Check("truncated-share", "Were most answers finished?", truncated, ("truncated",)),
    Check("truncated-untold", "Is it known which answers were cut?", untold),
    Check("length-skew", "Is no sequence most of the step?", skewed),
    Check("trailing-repeats", "Do answers end once?", tails, ("token_ids",), cost="full"),
)
