"""What every policy loss keeps that reads the policy and the advantages: where it pushes, and which way up its ratio stands."""

import torch
from torch import Tensor

from ..registry import FIELDS, Component
from .case import Case
from .check import Rule
from .claiming import agreeing
from .numbers import POLICIES
from .subject import Off, Subject, on

STEP = 1e-4
"""By how much the policy moves [nats]: less than any clip, so that only the ratio answers."""


def pushes(component: Component) -> bool:
    """Policy losses of which the direction follows from their columns."""
    return component.kind.name == "policy_loss" and {"log_prob", "advantages"} <= set(component.columns)


def _weighs(component: Component) -> bool:
    return pushes(component) and bool({"old_log_prob", "rollout_log_prob"} & set(component.columns))


def _on_policy(case: Case) -> Case:
    """Return the case with all policies equal; a column that nobody here knows may weigh a loss, and a weight is positive."""
    weights = {n: x.abs() + 0.1 for n, x in case.columns.items() if n not in FIELDS and x.is_floating_point()}
    return agreeing(case).having(**weights)


def _alternating(case: Case) -> Tensor:
    """``[S]``: advantages of which every second one is negative."""
    return torch.where(torch.arange(len(case.lengths)) % 2 == 0, 1.3, -0.7).to(torch.float64)


def _slopes(subject: Subject, case: Case) -> Tensor:
    """``[N]``: the gradient of the plain sum by the log-probabilities."""
    ones = torch.ones((), dtype=torch.float64)
    return subject.gradients(case, ones)[1]["log_prob"]


def _on_policy_direction(subject: Subject, case: Case) -> None:
    signs = _alternating(case)
    with on(_on_policy(case).having(advantages=signs[case.index])) as there:
        _follows(there, signs, _slopes(subject, there), chooses=subject.component.scope in ("group", "step"))


def _follows(case: Case, signs: Tensor, slopes: Tensor, *, chooses: bool) -> None:
    """``chooses``: it compares sequences, or tokens of the whole step, and may leave some of them out, though never all."""
    for i in range(len(case.lengths)):
        tokens = case.places_of([i])
        side = "below" if signs[i] > 0 else "above"
        against = slopes[tokens] * signs[i] > 0
        if against.any():
            at = tokens[against][0]
            raise Off(f"no gradient {_other(side)} 0 for token {int(at)}, whose advantage is {signs[i]:.6g}", f"{slopes[at]:.6g}")
        if tokens.numel() and not chooses and not (slopes[tokens] != 0).any():
            raise Off(f"a gradient {side} 0 for sequence {i}, whose advantage is {signs[i]:.6g}", "0 for all of its tokens")
    mixed = any(len({bool(signs[i] > 0) for i in group if case.lengths[i]}) == 2 for group in case.members())
    if chooses and mixed and not (slopes != 0).any():
        raise Off("a gradient for some token of a group with good and bad sequences", "0 for all of them")


def _other(side: str) -> str:
    return "above" if side == "below" else "below"


def _ratio_upright(subject: Subject, case: Case) -> None:
    there = _on_policy(case)
    mine = there.columns["log_prob"]
    together = {n: mine for n in POLICIES if n in there.columns and n != "ref_log_prob"}
    for moved in (together, {"rollout_log_prob": mine}) if "rollout_log_prob" in there.columns else (together,):
        fallen, risen = (there.having(**{n: x - by for n, x in moved.items()}) for by in (-STEP, STEP))
        with on(risen):
            _reacts(there, _pull(subject, fallen), _pull(subject, risen))


def _reacts(case: Case, fallen: Tensor, risen: Tensor) -> None:
    pulled = (fallen != 0) & (risen != 0)  # what a clip has cut says nothing of the ratio
    for i in range(len(case.lengths)):
        tokens = case.places_of([i])
        tokens = tokens[pulled[tokens]]
        before, after = abs(float(fallen[tokens].sum())), abs(float(risen[tokens].sum()))  # the sign is another check's
        if after < before - 1e-7 * abs(before) - 1e-12:
            raise Off(
                f"a pull on sequence {i} of {before:.8g} or more, once its tokens are likelier by {2 * STEP:g} nats than before",
                f"{after:.8g}",
            )


def _pull(subject: Subject, case: Case) -> Tensor:
    """``[N]``: what an advantage is multiplied by; what is added whatever the advantage, such as a pull to the old policy, drops out."""
    advantages = 0.01 * _alternating(case)[case.index]
    once, twice = (_slopes(subject, case.having(advantages=by * advantages)) for by in (1.0, 2.0))
    return (once - twice) / advantages


RULES = (
    Rule(
        "on-policy-direction",
        "On policy no token is pushed against its advantage, and those of a good or bad sequence are pushed.",
        "a sign: a loss is minimised, so what is good is taken from it",
        pushes,
        _on_policy_direction,
        per_choice=True,
        per_number=True,
        long=True,
        cases=3,
    ),
    Rule(
        "ratio-upright",
        "Its ratio is that of the policy to the old one, or to the sampler, and not the other way round.",
        "old_log_prob - log_prob in the exponent: a detached weight then takes from a token what the ratio should give it",
        _weighs,
        _ratio_upright,
        per_choice=True,
        per_number=True,
        cases=2,
    ),
)
