"""Warnings about recipes that are allowed but hardly meant: each component says what it suits."""

from collections.abc import Sequence
from itertools import pairwise

from ..registry import Rule
from .bound import Bound
from .terms import Coefficient, Correction, Term

_TURNED = {
    "policy_loss": "what is good is unlearnt",
    "value_loss": "the critic is driven away from the returns",
    "kl": "the policy is driven away from the reference",
}
"""What a term does below 0, by its kind."""


def lint_term(term: Term, aggregation: str) -> list[str]:
    """Return one sentence for each setting of a term that its component is not made for."""
    found = lint_params(term.bound) + lint_sign(term.bound, term.coefficient)
    suited = term.bound.component.suits.get("aggregation")
    if suited and aggregation not in suited.split(" | "):
        found.append(f"{term.bound.slot}: {term.bound.component.name!r} is made for the aggregation {suited}, not {aggregation}.")
    suited = term.bound.component.suits.get("apply")
    own = term.bound.params.get("gradient", "own") == "own"
    if suited and suited != "loss" and own:
        found.append(f"{term.bound.slot}: {term.bound.component.name!r} as a loss gives no useful gradient; it suits apply: {suited}.")
    deadly = own or term.bound.params.get("gradient") == "importance-token"
    if term.bound.component.suits.get("cap") == "null" and term.bound.params.get("cap") is not None and deadly:
        say = "past it the gradient is 0, so the tokens that drifted most get no pull"
        say += "; gradient: straight-through keeps it" if "gradient" in term.bound.params else ""
        found.append(f"{term.bound.slot}.cap: {term.bound.params['cap']:g} does not suit {term.bound.component.name!r} as a loss: {say}.")
    return found


def lint_params(bound: Bound) -> list[str]:
    """Return one sentence for each hyperparameter outside what its component says it suits."""
    found = []
    for name, text in bound.component.suits.items():
        rule, value = Rule.of(text), bound.params.get(name)
        if rule is not None and not rule.holds(value, bound.params):
            found.append(f"{bound.slot}.{name}: {value:g} does not suit {bound.component.name!r}, which is made for {name} {text}.")
    return found


def lint_sign(bound: Bound, coefficient: Coefficient) -> list[str]:
    """Return a sentence for a coefficient below 0: what is minimised is then maximised, which another sign convention may have brought in."""
    if coefficient.fixed is None or coefficient.fixed >= 0:
        return []
    name = bound.component.name
    turned = _TURNED.get(bound.component.kind.name, f"{name!r} is maximised")
    if bound.slot == "entropy":
        turned = "the policy is paid for making up its mind; above 0 it is a bonus for staying undecided"
    return [f"{coefficient.key}: {coefficient.fixed:g} is below 0, so {turned}."]


def lint_chain(advantages: Sequence[Bound]) -> list[tuple[Bound, str]]:
    """Return each estimator whose predecessor's advantages it replaces without reading them, and why that is a fault."""
    found = []
    for first, then in pairwise(advantages):
        if not {"advantages", "returns"} & then.reads:
            who = then.component.name
            say = f"{who!r} makes advantages anew and does not read those of {first.component.name!r} before it, which would be lost"
            found.append((then, f"{say}. A chain begins with one estimator and goes on with such as read those."))
    return found


def lint_corrections(corrections: Sequence[Correction], terms: Sequence[Term]) -> list[str]:
    """Return one sentence for each way in which the mismatch between sampler and trainer is corrected twice."""
    weighing = [c.bound for c in corrections if c.bound.component.weighs and not any(n == "correction" for n, _, _ in c.bound.levels)]
    found = [f"{b.slot}: {b.component.name!r} weighs what {weighing[0].component.name!r} has weighed already." for b in weighing[1:]]
    for term in terms:
        names = {name for name, _, _ in term.bound.levels}
        if weighing and term.bound.component.kind.name == "policy_loss" and "rollout_log_prob" in names and "correction" not in names:
            who = term.bound.component.name
            found.append(f"{weighing[0].slot}: {who!r} corrects for the sampler itself; {weighing[0].component.name!r} does it once more.")
    return found
