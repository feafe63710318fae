"""The reference: there, another model than the policy, and not so far away that a few tokens are the whole KL."""

import torch

from ..numerics import bounded
from .finding import Place
from .sight import Check, Found, Sight, share

FAR = 10.0
"""Nats between reference and policy at one token that are worth a look."""
ENOUGH, SPREAD, ALIKE = 128, 0.05, 0.1
"""Tokens, and nats of standard deviation, from which a correlation tells something; what it is at least between relatives."""


def missing(sight: Sight) -> Found:
    """Find a recipe with a KL whose reference is not there."""
    if "ref_log_prob" not in sight and (who := sight.needed.get("ref_log_prob")):
        yield (
            "error",
            Place("ref_log_prob"),
            f"the batch has no column 'ref_log_prob', which {who} needs",
            "nothing holds the policy to where it began; whoever fills the column with zeros or the policy's own has a KL of nothing",
            "score the rollouts by the frozen reference, or take kl: out of the recipe",
        )


def identical(sight: Sight) -> Found:
    """Find a reference that is the policy. Right before the first update; a step that is not known is taken for a later one."""
    if sight.step == 0 or (sight.step and "policy_version" in sight and int(sight["policy_version"].max()) == 0):
        return  # the later steps of a first rollout are taken on what was sampled before any
    for other in ("old_log_prob", "rollout_log_prob", "log_prob"):
        if other in sight and bool((sight["ref_log_prob"] == sight[other]).all()):
            when = f"after {sight.step} updates" if sight.step else "which is right only before the first update"
            yield (
                "error" if sight.step else "warning",
                Place("ref_log_prob"),
                f"all {sight.tokens} values are those of {other!r}, {when}: the KL is exactly 0",
                "nothing holds the policy to the reference, and the KL in the log looks perfect",
                "look at the reference's path and cache: the policy's weights were loaded for it, or its column was copied",
            )
            return


def constant(sight: Sight) -> Found:
    """Find a reference of one value."""
    x = sight["ref_log_prob"]
    if sight.tokens > 1 and bool((x == x[0]).all()):
        yield (
            "error",
            Place("ref_log_prob"),
            f"all {sight.tokens} values are {float(x[0]):g}",
            "the KL pulls every token to one probability instead of to the reference",
            "look whether the reference was run at all: a buffer of zeros that nobody wrote into looks like this",
        )


def unrelated(sight: Sight) -> Found:
    """Find a reference whose log-probabilities have nothing to do with the policy's."""
    base = next((n for n in ("old_log_prob", "rollout_log_prob", "log_prob") if n in sight), None)
    if base is None or sight.tokens < ENOUGH:
        return
    a, b = (sight.real(n).double() for n in ("ref_log_prob", base))
    a, b = a - a.mean(), b - b.mean()
    spread = (a.square().mean().sqrt(), b.square().mean().sqrt())
    if float(min(spread)) < SPREAD:
        return
    alike = float((a * b).mean() / (spread[0] * spread[1]))
    if alike < ALIKE:
        yield (
            "warning",
            Place("ref_log_prob"),
            f"over {sight.tokens} tokens it correlates with {base!r} by {alike:.2f}",
            "a reference finds likely what the policy began by finding likely: this one scored other tokens, or is another model",
            "look whether its rows are in the batch's order and its ids are the sampled ones; compare tokenizer and chat template",
        )


def outliers(sight: Sight) -> Found:
    """Find tokens at which reference and policy are far apart."""
    base = "log_prob" if "log_prob" in sight else "old_log_prob"
    if base not in sight:
        return
    d = sight.real("ref_log_prob") - sight.real(base)
    wrong = d.abs() > FAR
    if not bool(wrong.any()):
        return
    worst = sight.worst(d.abs(), "ref_log_prob")
    told = "; ".join(f"sequence {p.sequence} token {p.token}: {v:.3g}" for p, v in worst)
    k3 = torch.expm1(bounded(d, None)) - d
    part = float(torch.where(wrong, k3, 0.0).double().sum() / k3.double().sum().clamp(min=1e-12))
    yield (
        "warning",
        worst[0][0],
        f"{share(wrong.sum(), d.numel())} tokens have |ref_log_prob - {base}| > {FAR:g} nats; they are {100 * part:.3g} % of the k3 KL. Largest: {told}",
        "e^(ref - policy) overflows or outweighs everything else: a KL that spikes is a few tokens, not the coefficient",
        "lower the learning rate or narrow the clip range before the coefficient; k2 or k3-huber grow slower than k3",
    )


CHECKS = (
    Check("ref-log-prob-missing", "Is the reference there?", missing),
    Check("ref-identical", "Is the reference another model than the policy?", identical, ("ref_log_prob",)),
    Check("ref-constant", "Do the reference's log-probabilities differ?", constant, ("ref_log_prob",)),
    Check("ref-unrelated", "Does the reference score the same tokens?", unrelated, ("ref_log_prob",), cost="full"),
    Check("kl-outliers", "Is the reference nowhere far away?", outliers, ("ref_log_prob",)),
)
