"""What a component claims of itself: by a name from ``registry.claims``, or because every component of its kind must keep it."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..registry import Component, Level
from ..registry.claims import CLAIMS
from .case import WORDS, Case
from .check import Rule, Test
from .numbers import POLICIES
from .subject import Off, Result, Subject, on

REWARDS = ("rewards", "token_rewards", "component_rewards", "turn_rewards", "frozen_rewards", "baseline_rewards", "advantages")
VALUES = ("old_values", "bootstrap_values")


def claimed(name: str) -> Callable[[Component], bool]:
    """Return whether a component claims something."""
    return lambda component: name in component.claims


def only(result: Result) -> Tensor:
    """Return the single tensor of a result."""
    (part,) = result.parts.values()
    return part.x.detach()


def close(name: str, want: Tensor, got: Tensor, how: str = "", *, rtol: float = 1e-9, atol: float = 1e-11) -> None:
    """Raise ``Off`` where two tensors differ."""
    right = torch.isclose(want, got, rtol=rtol, atol=atol)
    if not right.all():
        at = int((~right).flatten().nonzero()[0])
        raise Off(f"{name}[{at}] = {want.flatten()[at].item():.6g}{how}", f"{got.flatten()[at].item():.6g}")


def agreeing(case: Case) -> Case:
    """Return the case in which all policies are one, and the critic was right."""
    columns: dict[str, Tensor] = {}
    for name, x in case.columns.items():
        if name in POLICIES:
            columns[name] = case.columns.get("log_prob", case.columns[next(n for n in POLICIES if n in case.columns)])
        if name in ("ref_logits", "teacher_logits") and "logits" in case.columns:
            columns[name] = case.columns["logits"]
        if name in ("old_values", "values"):
            columns[name] = case.columns.get("returns", x)
    return case.having(**columns)


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_policy_gradient(subject: Subject, case: Case) -> None:
    with on(agreeing(case)) as there:
        _is_minus_the_advantage(subject, there)


def _is_minus_the_advantage(subject: Subject, there: Case) -> None:
    inputs = subject.inputs(there, learn=True)
    (part,) = subject.run(inputs).parts.values()
    (found,) = torch.autograd.grad(part.x.sum(), [inputs.leaves["log_prob"]])
    close("the gradient by log_prob", -there.columns["advantages"], found, ", minus the advantage", rtol=1e-7, atol=1e-9)


def _on_policy_direction(subject: Subject, case: Case) -> None:
    per_sequence = torch.where(torch.arange(len(case.lengths)) % 2 == 0, 1.3, -0.7).to(torch.float64)
    with on(agreeing(case).having(advantages=per_sequence[case.index])) as there:
        _follows(subject, there, per_sequence)


def _follows(subject: Subject, case: Case, per_sequence: Tensor) -> None:
    there = case
    inputs = subject.inputs(there, learn=True)
    (part,) = subject.run(inputs).parts.values()
    (found,) = torch.autograd.grad(part.x.sum(), [inputs.leaves["log_prob"]])
    for i in range(len(case.lengths)):
        tokens = case.places_of([i])
        if tokens.numel() and not float(found[tokens].sum()) * float(per_sequence[i]) < 0:
            sign = "below" if per_sequence[i] > 0 else "above"
            raise Off(f"a gradient {sign} 0 for sequence {i}, whose advantage is {per_sequence[i]:.6g}", f"{found[tokens].sum():.6g}")


def _pulls_back(subject: Subject, case: Case) -> None:
    """Ratios from 1/2 to 1 where the advantage is positive, from 1 to 2 where it is negative."""
    advantages = case.columns["advantages"]
    step = torch.linspace(0.02, 0.65, max(case.tokens, 1), dtype=torch.float64)[: case.tokens]
    old = case.columns["log_prob"] + torch.where(advantages > 0, step, -step)
    with on(case.having(old_log_prob=old, rollout_log_prob=old)) as there:
        _still_pulls(subject, there, old)


def _still_pulls(subject: Subject, there: Case, old: Tensor) -> None:
    case, advantages = there, there.columns["advantages"]
    inputs = subject.inputs(there, learn=True)
    (part,) = subject.run(inputs).parts.values()
    (found,) = torch.autograd.grad(part.x.sum(), [inputs.leaves["log_prob"]])
    for i in range(case.tokens):
        if advantages[i] != 0 and not float(found[i]) * float(advantages[i]) < 0:
            ratio = float((case.columns["log_prob"][i] - old[i]).exp())
            raise Off(f"token {i}, advantage {advantages[i]:.4g} at ratio {ratio:.4g}, pulled back", f"a gradient of {found[i].item():.6g}")


def _zero_at_equality(subject: Subject, case: Case) -> None:
    with on(agreeing(case)) as there:
        value = only(subject.run(subject.inputs(there)))
        close("the value", torch.zeros_like(value), value, " at equality", rtol=0, atol=1e-9)


def _non_negative(subject: Subject, case: Case) -> None:
    value = only(subject.run(subject.inputs(case)))
    if (value < -1e-12).any():
        at = int((value < -1e-12).nonzero()[0])
        raise Off("no value below 0", f"{value[at].item():.6g} at {at}")


# ── KL, by enumeration over a small vocabulary ───────────────────────────────────────────────────────────────────────


def _mean(subject: Subject, case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return mean and gradient of an estimate over all words, and those of the KL; each word is a sequence of one token."""
    numbers = torch.cat([x.flatten() for x in case.columns.values()] or [torch.zeros(1)]).double()
    seeds = torch.cat([numbers, torch.ones(2 * WORDS, dtype=torch.float64)])[: 2 * WORDS]
    logits = torch.sin(3 * seeds[:WORDS] + torch.arange(WORDS)).requires_grad_()
    reference = torch.cos(2 * seeds[WORDS:] + torch.arange(WORDS)).log_softmax(0)
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - reference)).sum()
    (slope,) = torch.autograd.grad(exact, [logits], retain_graph=True)
    fixed = policy.detach()
    columns = {n: fixed for n in subject.names if n in ("log_prob", "old_log_prob", "rollout_log_prob")} | {"ref_log_prob": reference}
    over_words = {"logits": logits.detach().expand(WORDS, WORDS), "ref_logits": reference.expand(WORDS, WORDS)}
    levels = {n: subject.fields[n].level for n in subject.names}
    known = {n: x for n, x in {**columns, **over_words}.items() if n in levels}
    there = Case((1,) * WORDS, (0,) * WORDS, known, levels, case.optional)
    inputs = subject.inputs(there, learn=True)
    (part,) = subject.run(inputs).parts.values()
    mean = (fixed.exp() * part.x).sum()
    found = torch.autograd.grad(mean, list(inputs.leaves.values()), allow_unused=True)
    through = torch.zeros(WORDS, dtype=torch.float64)
    for (name, _), g in zip(inputs.leaves.items(), found, strict=True):
        if g is not None:
            through = through + (torch.autograd.grad(policy, [logits], g, retain_graph=True)[0] if name == "log_prob" else g.sum(0))
    return mean.detach(), through, exact.detach(), slope


def _unbiased(subject: Subject, case: Case) -> None:
    mean, _, exact, _ = _mean(subject, case)
    close("the mean over all words", exact[None], mean[None], ", the KL", rtol=1e-8, atol=1e-10)


def _unbiased_gradient(subject: Subject, case: Case) -> None:
    _, found, _, slope = _mean(subject, case)
    close("the mean gradient by the logits", slope, found, ", that of the KL", rtol=1e-7, atol=1e-9)


# ── aggregations ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _weights(subject: Subject, case: Case) -> None:
    weight = only(subject.run(subject.inputs(case)))
    if (weight < 0).any() or not weight.isfinite().all():
        raise Off("finite weights that are not below 0", f"{weight[(weight < 0) | ~weight.isfinite()][0].item():.6g}")
    if not case.tokens:
        return
    live = [i for i, n in enumerate(case.lengths) if n]
    inputs = subject.inputs(case.take(live))
    close("the weight", weight, only(subject.run(inputs)), " whether or not empty sequences lie in between")


def _sums_to_one(subject: Subject, case: Case) -> None:
    if case.tokens:
        total = only(subject.run(subject.inputs(case))).sum()
        close("the sum of the weights", torch.ones(1, dtype=torch.float64), total[None].double())


# ── advantages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _advantages(subject: Subject, case: Case) -> Tensor:
    result = subject.run(subject.inputs(case))
    if "advantages" not in result.parts:
        raise Off("advantages", f"only {', '.join(result.parts)}")
    return result.parts["advantages"].x


def _shifted(case: Case, by: float) -> Case:
    """Return the case with more for every sequence: on its last token, where rewards lie on tokens; every advantage, where those are read."""
    columns = {n: x + by for n, x in case.columns.items() if n in ("rewards", "component_rewards", "turn_rewards", "advantages")}
    if "token_rewards" in case.columns:
        columns["token_rewards"] = case.columns["token_rewards"] + by * case.last.double()
    return case.having(**columns)


def _scaled(case: Case, by: float) -> Case:
    return case.having(**{n: by * x for n, x in case.columns.items() if n in REWARDS or n in VALUES})


def _shift_invariant(subject: Subject, case: Case) -> None:
    close(
        "the advantage",
        _advantages(subject, case),
        _advantages(subject, _shifted(case, 2.5)),
        " with 2.5 more for all",
        rtol=1e-5,
        atol=1e-6,
    )


def _scale_invariant(subject: Subject, case: Case) -> None:
    """Rewards large enough that no epsilon counts."""
    one, two = _advantages(subject, _scaled(case, 1e4)), _advantages(subject, _scaled(case, 3e4))
    close("the advantage", one, two, " for rewards three times as large", rtol=1e-3, atol=1e-5)


def _scale_equivariant(subject: Subject, case: Case) -> None:
    one, two = _advantages(subject, case), _advantages(subject, _scaled(case, 3.0))
    close("the advantage", 3 * one, two, " for rewards three times as large", rtol=1e-7, atol=1e-9)


def _group_centred(subject: Subject, case: Case) -> None:
    result = subject.run(subject.inputs(case)).parts["advantages"]
    if result.level is not Level.SEQUENCE:
        raise Off("one advantage per sequence, of which a group's can be added up", "one per token")
    for members in case.members():
        total = result.x[torch.tensor(members, dtype=torch.long)].sum()
        if abs(float(total)) > 1e-6:
            raise Off(f"advantages of sequences {members} that add up to 0", f"{total:.6g}")


def _unit_deviation(subject: Subject, case: Case) -> None:
    part = subject.run(subject.inputs(_scaled(case, 1e4))).parts["advantages"]
    members = case.members() if subject.component.scope == "group" else [list(range(len(case.lengths)))]
    for chosen in members:
        values = part.of(case, chosen)
        if values.numel() < 2 or not (values != values[0]).any():
            continue
        found = float(values.std())
        if abs(found - 1) > 1e-3:
            raise Off(f"deviation 1 over the advantages of sequences {chosen}", f"{found:.6g}")


def _independent_baseline(subject: Subject, case: Case) -> None:
    one = _advantages(subject, case)
    for i in range(len(case.lengths)):
        more = case.columns["rewards"].clone()
        more[i] += 1.5
        two = _advantages(subject, case.having(rewards=more))
        alone = sum(g == case.groups[i] for g in case.groups) < 2
        want = one[i] if alone and float(one[i]) == 0 else one[i] + 1.5  # nobody to compare it with
        close(f"the advantage of sequence {i}, paid 1.5 more, alone: advantages", want[None], two[i][None], rtol=1e-7, atol=1e-9)


def _causal(subject: Subject, case: Case) -> None:
    """More is paid at the first token of each sequence: whatever comes later stays."""
    first = torch.tensor([p == 0 for n in case.lengths for p in range(n)], dtype=torch.bool)
    one = _advantages(subject, case)
    two = _advantages(subject, case.having(token_rewards=case.columns["token_rewards"] + 1.5 * first.double()))
    close("the advantage of a later token", one[~first], two[~first], " whatever was paid before it", rtol=1e-7, atol=1e-9)


def _zero_at_perfect_values(subject: Subject, case: Case) -> None:
    gamma = float(subject.settings.get("gamma", 1.0))
    rewards, values = case.columns["token_rewards"], torch.zeros(case.tokens, dtype=torch.float64)
    for t in reversed(range(case.tokens)):
        after = 0.0 if case.last[t] else float(values[t + 1])
        values[t] = float(rewards[t]) + gamma * after
    uncut = torch.zeros(len(case.lengths), dtype=torch.float64)
    with on(agreeing(case).having(old_values=values, truncated=uncut)) as there:
        found = _advantages(subject, there)
        close("the advantage", torch.zeros_like(found), found, ", for the critic knew", rtol=0, atol=1e-9)


# ── corrections, coefficients ────────────────────────────────────────────────────────────────────────────────────────


def _bounded_weight(subject: Subject, case: Case) -> None:
    result = subject.run(subject.inputs(case))
    if "weight" in result.parts:
        weight = result.parts["weight"].x
        if not weight.isfinite().all() or (weight < 0).any():
            raise Off("finite weights that are not below 0", f"{weight[~weight.isfinite() | (weight < 0)][0].item():.6g}")


def _neutral(subject: Subject, case: Case) -> None:
    with on(agreeing(case)) as there:
        for name, part in subject.run(subject.inputs(there)).parts.items():
            close("the weight" if name == "weight" else "keep", torch.ones_like(part.x).double(), part.x.double(), " where both agree")


def _rule(name: str, cause: str, test: Test, *, cases: int = 3) -> Rule:
    return Rule(name, CLAIMS[name][1], cause, claimed(name), test, cases=cases)


RULES = (
    _rule(
        "on-policy-gradient",
        "a sign, a weight that should be detached and is not (its own gradient adds to it), or a mean inside",
        _on_policy_gradient,
    ),
    _rule("on-policy-direction", "a sign: a loss is minimised, so what is good is taken from it", _on_policy_direction),
    _rule("pulls-back", "the clip on the wrong side: max of the two losses, not min; or bounds that are swapped", _pulls_back),
    _rule(
        "zero-at-equality", "a constant left over (k3 is exp(-d) - 1 + d), or the two sides taken from different columns", _zero_at_equality
    ),
    _rule("non-negative", "the log-ratio with the wrong sign, or clipped on one side only", _non_negative),
    _rule("unbiased", "the ratio upside down: k3 reads ref over policy for tokens that the policy sampled", _unbiased),
    _rule(
        "unbiased-gradient",
        "the gradient of an unbiased value is not an unbiased gradient; the score function is missing",
        _unbiased_gradient,
    ),
    Rule(
        "weights",
        "Its weights are finite and not below 0, and sequences without a token change none.",
        "a count of rows instead of totals.sequences, or a division by a length of 0",
        lambda c: c.kind.name == "aggregation",
        _weights,
    ),
    _rule("sums-to-one", "divided by the wrong count: totals has tokens, sequences and groups of the whole step", _sums_to_one),
    _rule("shift-invariant", "no baseline is taken off, or one that is not a mean of rewards", _shift_invariant),
    _rule("scale-invariant", "not divided by a deviation, or by its square", _scale_invariant),
    _rule("scale-equivariant", "a constant among the rewards, or a division by something that grows with them", _scale_equivariant),
    _rule("group-centred", "the baseline is not the mean of the group", _group_centred),
    _rule("unit-deviation", "the other deviation, with n instead of n - 1 in it, or that of something else", _unit_deviation),
    _rule(
        "independent-baseline", "the mean of the whole group: it holds the reward itself, unlike that of the others", _independent_baseline
    ),
    _rule("causal", "a sum from the front instead of from the end", _causal),
    _rule(
        "zero-at-perfect-values",
        "an error off by one: the value after token t is that of token t + 1, and 0 after the last",
        _zero_at_perfect_values,
    ),
    Rule(
        "weights-bounded",
        "Its weights are finite and not below 0.",
        "an exp without a cap",
        lambda c: c.kind.name == "correction" and c.weighs,
        _bounded_weight,
    ),
    _rule("neutral-at-agreement", "a ratio without exp, or a threshold that excludes 1", _neutral),
)
