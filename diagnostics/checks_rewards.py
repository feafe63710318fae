"""Rewards: there, not all alike, paid once, and of a size that learning rates are made for."""

import torch

from .finding import Place
from .sight import Check, Found, Sight

LARGE = 1000.0
MANY, SOME = 8, 20
"""Answers in a row, at least one of so many in all, and values of the others, from which a common reward looks like a filler."""


def missing(sight: Sight) -> Found:
    """Find a recipe that pays, and nothing to pay with."""
    pays = sight.plan is not None and (sight.plan.advantages or sight.plan.rewards) and not sight.batch.estimated
    if pays and "rewards" not in sight and "token_rewards" not in sight and "advantages" not in sight:
        yield (
            "error",
            Place("rewards"),
            "the batch has neither 'rewards' nor 'token_rewards', and the recipe estimates advantages",
            "there is nothing to learn from",
            "bring rewards [S], or token_rewards [N]",
        )


def constant(sight: Sight) -> Found:
    """Find rewards that are all alike."""
    names = [n for n in ("rewards", "token_rewards") if n in sight]
    columns = [sight.real(n) for n in names]
    if names and len(sight.batch) > 1 and all(bool((x == x[0]).all()) for x in columns):
        earned = " and ".join(
            f"{float(x[0]):g}{' at each token' if n == 'token_rewards' else ''}" for n, x in zip(names, columns, strict=True)
        )
        yield (
            "warning",
            Place(names[0]),
            f"all {len(sight.batch)} sequences earn {earned}",
            "no answer is better than another: advantages are 0, or 0 / 0 where they are normalised",
            "look at the judge on ten answers by hand: a parser that finds nothing gives every answer the same",
        )


def unscored(sight: Sight) -> Found:
    """Find a tail of answers that all earn one value which nobody else earns, where rewards are graded."""
    x = sight.real("rewards").flatten()
    filler = x == x[-1]
    n = int(filler.sum())
    if n >= MANY and n * SOME >= x.shape[0] and bool(filler[-n:].all()) and int(torch.unique(x[~filler]).shape[0]) >= MANY:
        yield (
            "warning",
            Place("rewards", x.shape[0] - n),
            f"the last {n} of {x.shape[0]} sequences all earn {float(x[-1]):g}, which no other earns; this is the first",
            "it looks as if the judge stopped there: answers that nobody scored are taught as if they were all alike",
            "wait for every score, or drop the answers without one before advantages are estimated",
        )


def flat_component(sight: Sight) -> Found:
    """Find reward functions that say the same of every answer."""
    x = sight["component_rewards"]
    for k, said in enumerate(x.unbind(1)) if x.dim() == 2 and x.shape[1] > 1 else ():
        live = said[said.isfinite()]
        if live.numel() > 1 and bool((live == live[0]).all()):
            yield (
                "warning",
                Place("component_rewards"),
                f"component {k} of {x.shape[1]} is {float(live[0]):g} in all {live.numel()} sequences",
                "this reward function tells no answers apart: normalised by itself it is 0 / 0, added up it only moves the mean",
                "run it on ten answers by hand; look whether it reads the field that the answers are in",
            )


def large(sight: Sight) -> Found:
    """Find rewards that are far from 1."""
    for name in ("rewards", "token_rewards"):
        if name in sight and (most := float(sight.real(name).abs().max())) > LARGE:
            yield (
                "warning",
                sight.worst(sight.real(name).abs(), name, 1)[0][0],
                f"the reward is {most:.4g} in size",
                "a loss that is not normalised grows with it: the critic's with its square",
                "scale-rewards or clip-rewards in reward:, or a normalising advantage",
            )


def twice(sight: Sight) -> Found:
    """Find a reward that is paid to the sequence and to its tokens."""
    paid, whole = sight.sequences.sum(sight.real("token_rewards").double()), sight.real("rewards").double()
    live = whole != 0
    if bool(live.any()) and bool((paid - whole).abs().max() <= 1e-5 * whole.abs().max()):
        place = sight.first(live, "rewards") or Place("rewards")
        assert place.sequence is not None
        yield (
            "error",
            Place("token_rewards", place.sequence),
            f"its token rewards add up to {float(paid[place.sequence]):g}, which is its 'rewards' too, as in every sequence",
            "token_rewards add to rewards: everything is paid twice",
            "leave one of the two columns out",
        )


CHECKS = (
    Check("rewards-missing", "Is there a reward?", missing),
    Check("rewards-constant", "Do rewards differ?", constant, whole=True),
    Check("rewards-unscored", "Was every answer scored?", unscored, ("rewards",), cost="full", whole=True),
    Check("rewards-component-flat", "Does every reward function tell answers apart?", flat_component, ("component_rewards",), whole=True),
    Check("rewards-large", "Are rewards of a usual size?", large),
    Check("rewards-twice", "Is every reward paid once?", twice, ("rewards", "token_rewards")),
)
