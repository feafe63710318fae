"""Columns: there, finite, whole numbers where they count, and not rounded away."""

import torch
from torch import Tensor

from ..registry import FIELDS, Level
from .finding import Place
from .sight import Check, Found, Sight, share

LOG_PROBS = ("log_prob", "old_log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob", "prm_log_prob")
ROUNDING = 1e-3
"""Nats by which half precision may take an entropy below 0."""
ENOUGH = 32
"""Values below which numbers may be round by chance."""


def missing(sight: Sight) -> Found:
    """Find columns that the recipe asks for; those with a check of their own are left to it."""
    for name, who in sight.needed.items():
        if name not in sight and name not in ("old_log_prob", "ref_log_prob"):
            yield (
                "error",
                Place(name),
                f"the batch has no column {name!r}, which {who} needs",
                "the step cannot be taken",
                "bring the column, or take the component out of the recipe",
            )


def not_finite(sight: Sight) -> Found:
    """Find NaN and infinity in every column; what the vocabulary gives them a meaning for is right."""
    for name, x in sight.batch.columns.items():
        if not x.is_floating_point():
            continue
        if bool(torch.isfinite(x).all()):
            continue
        said = FIELDS.get(name)
        nan = x.isnan() if said is None or not said.nan_means else torch.zeros_like(x, dtype=torch.bool)
        inf = x.isinf() if said is None or not said.inf_means else x == float("inf")
        for kind, wrong in (("NaN", nan), ("infinite", inf)):
            place = sight.first(wrong, name)
            if place is not None:
                yield (
                    "error",
                    place,
                    f"{share(wrong.sum(), wrong.numel())} values are {kind}; this is the first",
                    "one such value makes the loss and every gradient of the step NaN",
                    _cause(name, kind),
                )


def _cause(name: str, kind: str) -> str:
    if name in LOG_PROBS:
        return "look at the logits there: a word forbidden by a sampling filter has -inf; compare a run in float32 throughout"
    if name in ("advantages", "returns"):
        return "look for a division by a standard deviation of 0 (a group or batch of equal rewards), then at rewards and values"
    if name in ("rewards", "token_rewards", "component_rewards"):
        return "nobody scored this answer: look for a judge that failed or ran out of time; drop the answer, or score it again"
    return f"look where {name!r} is made: a division by 0, an overflow of half precision, or a {kind} answer of a judge"


def whole(sight: Sight) -> Found:
    """Find indices below 0."""
    for name in ("token_ids", "turns", "positions", "prompt_lengths", "policy_version"):
        if name in sight and (place := sight.first(sight[name] < 0, name)) is not None:
            yield (
                "error",
                place,
                f"{share((sight[name] < 0).sum(), sight[name].numel())} values are negative; this is the first",
                "an ignore index such as -100 stands on a token that is said to be sampled: mask and ids disagree",
                "make the mask 0 wherever the id is an ignore index",
            )


def turns(sight: Sight) -> Found:
    """Find turns that go backward."""
    x = sight["turns"]
    wrong = (sight.sequences.next(x, 0).long() < x) & ~sight.sequences.is_last
    if (place := sight.first(wrong, "turns")) is not None:
        yield (
            "error",
            place,
            f"the next token of the sequence has a smaller turn, {share(wrong.sum(), x.numel())} times",
            "rewards and advantages by turn go to the wrong tokens",
            "number turns from 0 upward along each response",
        )


def rounded(sight: Sight) -> Found:
    """Find log-probabilities of half precision, whether or not they were widened since."""
    for name in LOG_PROBS:
        if name not in sight or sight[name].shape[0] < ENOUGH:
            continue
        x = sight[name]
        half = _rounded_to(x)
        if half is not None and int(torch.unique(x).shape[0]) > 8:
            step = float((x.abs().mean() * torch.finfo(half).eps).nan_to_num())
            yield (
                "warning",
                Place(name),
                f"every value is a number of {half}".replace("torch.", "") + f", {step:.2g} nats apart at the mean",
                "differences of two such columns are rounding: ratios stray from 1, and KL has a floor that no training lowers",
                "take log_softmax in float32, and do not store or send log-probabilities in half precision",
            )


def _rounded_to(x: Tensor) -> torch.dtype | None:
    for half in (torch.bfloat16, torch.float16):
        if x.dtype == half or bool((x.to(half).to(x.dtype) == x).all()):
            return half
    return None


def ids_as_floats(sight: Sight) -> Found:
    """Find ids that a float cannot tell apart, before they were packed."""
    for name, x in sight.padded.items():
        said = FIELDS.get(name)
        if said is not None and said.integer and x.is_floating_point():
            yield (
                "error" if bool((x.abs() >= 2 / torch.finfo(x.dtype).eps).any()) else "warning",
                Place(name),
                f"ids are {x.dtype}".replace("torch.", ""),
                "above 2^24 float32 gives two ids the same number (float16: above 2048, bfloat16: above 256): groups or words merge",
                "keep ids as integers (torch.long)",
            )


def weights(sight: Sight) -> Found:
    """Find weights that ``weigh`` cannot have meant."""
    for name, w in sight.batch.weights.items():
        if w.shape[0] and not bool((w.isfinite() & (w >= 0)).all()):
            wrong = ~(w.isfinite() & (w >= 0))
            place = Place(f"weights of {name}", int(sight.sequences.index[int(wrong.to(torch.uint8).argmax())]))
            yield (
                "error",
                place,
                f"{share(wrong.sum(), w.shape[0])} weights are negative or not finite",
                "the step's mean is no mean",
                "look at the totals: a denominator of 0, or an aggregation of your own",
            )


def repeated(sight: Sight) -> Found:
    """Find sequences of one name."""
    x = sight["sequence_ids"]
    _, index, times = torch.unique(x, return_inverse=True, return_counts=True)
    wrong = times[index] > 1
    if (place := sight.first(wrong, "sequence_ids")) is not None:
        yield (
            "error",
            place,
            f"{share(wrong.sum(), x.numel())} sequences share their id with another one; this is the first",
            "random selections are drawn by this id: sequences of one id are kept or dropped together, on every rank",
            "number sequences over the whole rollout and all ranks, not within a worker",
        )


def entropy(sight: Sight) -> Found:
    """Find entropies below 0."""
    x = sight.real("entropy")
    wrong = x < -ROUNDING
    if (place := sight.first(wrong, "entropy")) is not None:
        yield (
            "error",
            place,
            f"{share(wrong.sum(), x.numel())} entropies are negative, down to {float(x.min()):.3g}",
            "no distribution over words has one: a bonus made of it pushes the policy to be sure instead of to explore",
            "bring -sum(p log p) over the whole vocabulary, not its negative and not the log-probability of the sampled token",
        )


def levels(sight: Sight) -> Found:
    """Find ``truncated`` that is no flag and other flags."""
    for name in ("truncated", "demonstration"):
        if name in sight:
            x = sight[name]
            if (place := sight.first((x != 0) & (x != 1), name)) is not None:
                value = float(x[_flat(sight, place)])
                yield (
                    "error",
                    place,
                    f"the value is {value:g}; it says 1 or 0",
                    "what asks whether it is 1 takes this for no",
                    "bring a flag, not a length or a probability",
                )


def _flat(sight: Sight, place: Place) -> int:
    assert place.sequence is not None
    assert place.column is not None
    here = sight.batch.levels[place.column] is Level.TOKEN
    return int(sight.sequences.offsets[place.sequence]) + (place.token or 0) if here else place.sequence


CHECKS = (
    Check("column-missing", "Does the batch bring what the recipe asks for?", missing),
    Check("not-finite", "Is every value of every column finite?", not_finite),
    Check("negative-ids", "Are ids, turns and lengths at least 0?", whole),
    Check("turns-backward", "Do turns go up along a sequence?", turns, ("turns",)),
    Check("flags", "Are flags 0 or 1?", levels),
    Check("ids-repeated", "Has every sequence an id of its own?", repeated, ("sequence_ids",), cost="full"),
    Check("entropy-impossible", "Is every entropy at least 0?", entropy, ("entropy",)),
    Check("half-precision", "Have log-probabilities more than half precision?", rounded, cost="full"),
    Check("float-ids", "Are ids integers?", ids_as_floats),
    Check("weights", "Are the weights of the step finite and not negative?", weights, cost="full"),
)
