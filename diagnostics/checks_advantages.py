"""Advantages, returns and the critic: spread, signs and sizes."""

import torch

from .finding import Place
from .sight import Check, Found, Sight, share

EXTREME = 30.0
"""Size of an advantage, as a multiple of the batch's standard deviation, and as a number."""
ENOUGH = 8
"""Tokens below which signs may agree by chance."""


def spread(sight: Sight) -> Found:
    """Find advantages that are all alike."""
    x = sight.real("advantages")
    if x.numel() > 1 and bool((x == x.flatten()[0]).all()):
        value = float(x.flatten()[0]) + 0.0  # no -0
        yield (
            "error" if sight.batch.totals is None else "warning",  # one minibatch of many may have nothing to learn
            Place("advantages"),
            f"all {x.numel()} values are {value:g}: the standard deviation is 0",
            "at 0 the policy loss has no gradient; whitened, it is 0 / 0"
            if not value
            else "every token is pushed the same way, right or wrong",
            "look at the rewards: a judge that always says the same, groups that were all solved or all failed",
        )


def one_sided(sight: Sight) -> Found:
    """Find advantages of one sign."""
    x = sight.real("advantages")
    if x.shape[0] < ENOUGH or bool((x == x[0]).all()):
        return
    for sign, wrong in (("positive", bool((x >= 0).all())), ("negative", bool((x <= 0).all()))):
        if wrong:
            yield (
                "warning",
                Place("advantages"),
                f"all {x.numel()} values are 0 or {sign}; their mean is {float(x.mean()):.3g}",
                "without a baseline every answer is pushed the same way, only more or less: noise instead of a comparison",
                "estimate against a baseline (grpo, rloo, gae), or whiten",
            )


def extreme(sight: Sight) -> Found:
    """Find single advantages that outweigh all others."""
    x = sight.real("advantages").double()
    size = x.abs()
    most = float(size.max())
    if most <= EXTREME:
        return
    (place, _), *_ = sight.worst(size, "advantages", 1)
    yield (
        "warning",
        place,
        f"the advantage is {most:.4g}; the standard deviation of all is {float(x.std(unbiased=False)):.3g}",
        "the step is this token's, and the gradient norm is clipped for all others with it",
        "normalise (whiten, scale: group-std), clip-advantages, or look at the reward that made it",
    )


def varies(sight: Sight) -> Found:
    """Find advantages of a group that are all alike though its rewards differ."""
    s, groups = sight.sequences, sight.sequences.groups
    if "rewards" not in sight or groups is None:
        return
    mean = sight.per_sequence("advantages")
    live = s.lengths > 0
    reward = sight.real("rewards").double()
    lost = (s.group_std(reward) > 1e-6) & (s.group_std(torch.where(live, mean, 0.0)) == 0) & (s.group_sum(live.double()) > 1)
    if bool(lost.any()):
        group = int(lost.to(torch.uint8).argmax())
        member = (groups - group).abs().argmin()
        yield (
            "error",
            Place("advantages", int(member), group=group),
            f"{share(lost.sum(), lost.numel())} groups have different rewards but one advantage; this is the first",
            "what was earned does not reach the tokens: the group teaches nothing",
            "estimate after the rewards are final; look whether rewards and advantages are of the same batch",
        )


def follows(sight: Sight) -> Found:
    """Find advantages that go against the rewards."""
    if "rewards" not in sight or sight.sequences.groups is None:
        return
    s, mean, reward = sight.sequences, sight.per_sequence("advantages"), sight.real("rewards").double()
    reward = reward - s.group_spread(s.group_mean(reward))
    a, b = mean - mean.mean(), reward
    size = (a.square().sum() * b.square().sum()).sqrt()
    if len(sight.batch) >= ENOUGH and float(size) > 1e-9 and float((a * b).sum() / size) < -0.5:
        yield (
            "error",
            Place("advantages"),
            f"over sequences they correlate with the rewards of their group by {float((a * b).sum() / size):.2f}",
            "the policy learns to earn less",
            "look for a lost sign, or rows that were sorted in one column and not in the other",
        )


def critic(sight: Sight) -> Found:
    """Find a critic that says the same everywhere, or worse than nothing."""
    v, r = sight.real("old_values").double(), sight.real("returns").double() if "returns" in sight else None
    if v.numel() > 1 and bool((v == v[0]).all()):
        yield (
            "warning",
            Place("old_values"),
            f"all {v.numel()} values are {float(v[0]):g}",
            "the baseline is one number: the critic was not run, or has not learned",
            "look whether the critic's output is stored before the update; warm the critic up",
        )
    elif r is not None and float(r.var(unbiased=False)) > 1e-12:
        explained = 1 - float((r - v).var(unbiased=False) / r.var(unbiased=False))
        if explained < -1:
            yield (
                "warning",
                Place("old_values"),
                f"the critic explains {explained:.3g} of the variance of the returns (1: all, 0: as a constant)",
                "advantages are noisier with this critic than with none",
                "more or faster critic updates, normalised returns; look whether rewards were rescaled after the critic was trained",
            )


CHECKS = (
    Check("advantages-zero-spread", "Do advantages differ?", spread, ("advantages",)),
    Check("advantages-one-sided", "Do advantages have both signs?", one_sided, ("advantages",), whole=True),
    Check("advantages-extreme", "Is no advantage extreme?", extreme, ("advantages",)),
    Check("advantages-lost", "Do different rewards give different advantages?", varies, ("advantages",), cost="full"),
    Check("advantages-reversed", "Do better answers have higher advantages?", follows, ("advantages",), cost="full"),
    Check("critic-flat", "Does the critic tell tokens apart?", critic, ("old_values",)),
)
