"""Denominators after rejection, and the weights of corrections: what is left of a step."""

import torch

from .finding import Place
from .sight import Check, Found, Sight, share

DROPPED = 0.5
"""Share of tokens that corrections may drop."""
ESS = 0.3
CAPPED = 0.3
"""Share of weights at one and the same largest value."""


def rejected(sight: Sight) -> Found:
    """Count the tokens that corrections left to the actor."""
    inner = sight.batch.kept
    if inner is None or not sight.tokens:
        return
    left = inner.sequences.index.shape[0]
    gone = sight.tokens - left
    if gone <= DROPPED * sight.tokens:
        return
    kept = sight.plan is None or sight.plan.denominator == "kept"
    told = f"the mean is over the {left} that are left" if kept else f"the mean is still over all {sight.tokens}"
    why = (
        f"each token that is left counts {sight.tokens / left:.3g} times as much: a noisy step of full size"
        if kept and left
        else f"the step is {100 * left / sight.tokens:.3g} % of its size: learning slows without a word"
    )
    yield (
        "error" if left == 0 else "warning",
        Place(),
        f"corrections dropped {share(gone, sight.tokens)} tokens; {told}",
        why,
        "look at rollout-mismatch and the thresholds of correction:; denominator: kept | original says which of the two is meant",
    )


def vanished(sight: Sight) -> Found:
    """Find sequences that lost all tokens to corrections."""
    inner = sight.batch.kept
    if inner is None:
        return
    gone = (inner.sequences.lengths == 0) & (sight.sequences.lengths > 0)
    if int(gone.sum()) > DROPPED * len(sight.batch):
        yield (
            "warning",
            Place(sequence=int(gone.to(torch.uint8).argmax())),
            f"{share(gone.sum(), len(sight.batch))} sequences lost all their tokens to corrections; this is the first",
            "advantages were compared among answers that no longer count: the mean over those left is not 0",
            "look which sign of advantage they have (correction/*_dropped_positive); reject before estimate where you can",
        )


def weights(sight: Sight) -> Found:
    """Measure the weights of corrections."""
    w = sight.real("correction").double()
    if (place := sight.first(w < 0, "correction")) is not None:
        yield (
            "error",
            place,
            f"the weight is {float(w.min()):.3g}",
            "a negative weight turns the token's gradient round",
            "a correction returns ratios, not their logarithms",
        )
        return
    total, square = w.sum(), (w * w).sum()
    ess = float(total * total / (w.numel() * square).clamp(min=1e-300))
    if ess < ESS and float(total) > 0:
        place, most = sight.worst(w, "correction", 1)[0]
        yield (
            "warning",
            place,
            f"the effective sample size of the weights is {ess:.3g} of the tokens; the largest weight, here, is {most:.3g}",
            "a few tokens decide the step",
            "cap the weights lower, or correct per token instead of per sequence; sample anew",
        )


def capped(sight: Sight) -> Found:
    """Count weights that stand at the cap."""
    w = sight.real("correction")
    most = w.max()
    at = w == most
    if float(most) > 1 and int(at.sum()) > CAPPED * w.numel() and not bool(at.all()):
        yield (
            "warning",
            sight.first(at, "correction") or Place("correction"),
            f"{share(at.sum(), w.numel())} weights are clamped at {float(most):.4g}",
            "what is capped is no longer corrected: the bias that the weights were to remove is back",
            "look at rollout-mismatch first; a cap that so many reach is too low or the sampler too far away",
        )


CHECKS = (
    Check("tokens-rejected", "Did corrections leave most of the tokens?", rejected),
    Check("sequences-rejected", "Did corrections leave most of the sequences?", vanished),
    Check("correction-weights", "Are the weights of corrections of use?", weights, ("correction",)),
    Check("correction-clamped", "Are few weights at their cap?", capped, ("correction",)),
)
