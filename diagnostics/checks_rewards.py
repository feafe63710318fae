"""Rewards: there, not all alike, paid once, and of a size that learning rates are made for."""

from .finding import Place
from .sight import Check, Found, Sight

LARGE = 1000.0


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
    x = sight.real("rewards")
    if x.numel() > 1 and bool((x == x[0]).all()) and "token_rewards" not in sight:
        yield (
            "warning",
            Place("rewards"),
            f"all {x.numel()} sequences earn {float(x[0]):g}",
            "no answer is better than another: advantages are 0, or 0 / 0 where they are normalised",
            "look at the judge on ten answers by hand: a parser that finds nothing gives every answer the same",
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
    Check("rewards-constant", "Do rewards differ?", constant, ("rewards",), whole=True),
    Check("rewards-large", "Are rewards of a usual size?", large),
    Check("rewards-twice", "Is every reward paid once?", twice, ("rewards", "token_rewards")),
)
