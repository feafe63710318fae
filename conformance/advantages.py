"""What an advantage estimator may claim: what moves its advantages, and what leaves them as they are."""

import torch
from torch import Tensor

from ..registry import Level
from .case import Case
from .claiming import agreeing, claim_rule, close
from .subject import Off, Subject, on

REWARDS = ("rewards", "token_rewards", "component_rewards", "turn_rewards", "frozen_rewards", "baseline_rewards", "advantages")
VALUES = ("old_values", "bootstrap_values")


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
    """Time passes with each token; for what reads turns it may also pass with each turn."""
    always = torch.ones(case.tokens, dtype=torch.bool)
    clocks = [always, _turn_ends(case)] if "turns" in case.columns else [always]
    for i, passes in enumerate(clocks):
        try:
            _knew(subject, case, passes)
            return
        except Off:
            if i == len(clocks) - 1:
                raise


def _knew(subject: Subject, case: Case, passes: Tensor) -> None:
    gamma = float(subject.settings.get("gamma", 1.0))
    rewards, values = case.columns["token_rewards"], torch.zeros(case.tokens, dtype=torch.float64)
    for t in reversed(range(case.tokens)):
        after = 0.0 if case.last[t] else float(values[t + 1])
        values[t] = float(rewards[t]) + (gamma if passes[t] else 1.0) * after
    uncut = torch.zeros(len(case.lengths), dtype=torch.float64)
    with on(agreeing(case).having(old_values=values, truncated=uncut)) as there:
        found = _advantages(subject, there)
        close("the advantage", torch.zeros_like(found), found, ", for the critic knew", rtol=0, atol=1e-9)


def _turn_ends(case: Case) -> Tensor:
    turns = case.columns["turns"]
    return case.last | (turns != turns.roll(-1))


def _paid(case: Case, i: int, by: float) -> Case:
    """Return the case with one sequence paid more: on its last token, where rewards lie on tokens."""
    chosen = torch.arange(len(case.lengths)) == i
    columns = {}
    for name in ("rewards", "component_rewards", "turn_rewards"):
        if name in case.columns:
            x = case.columns[name]
            columns[name] = torch.where(chosen if x.dim() == 1 else chosen[:, None], x + by, x)
    for name, where in (("token_rewards", case.last & chosen[case.index]), ("advantages", chosen[case.index])):
        if name in case.columns:
            columns[name] = torch.where(where, case.columns[name] + by, case.columns[name])
    return case.having(**columns)


def _rewards_better(subject: Subject, case: Case) -> None:
    """Each sequence in turn is paid far more than all others, then far less."""
    there = case.take([i for i, n in enumerate(case.lengths) if n])
    with on(there):
        for i, group in enumerate(there.groups):
            low, high = (_sum_of(subject, _paid(there, i, by), i) for by in (-50.0, 50.0))
            alone = there.groups.count(group) < 2  # nobody to compare it with
            if not (high >= low if alone else high > low):
                raise Off(f"an advantage of sequence {i}, paid 100 more, above {low:.6g}", f"{high:.6g}")


def _sum_of(subject: Subject, case: Case, i: int) -> float:
    part = subject.run(subject.inputs(case)).parts["advantages"]
    return float(part.of(case, [i]).sum())


RULES = (
    claim_rule("rewards-better", "a sign: the baseline less the reward, or an error of the critic the wrong way round", _rewards_better),
    claim_rule("shift-invariant", "no baseline is taken off, or one that is not a mean of rewards", _shift_invariant),
    claim_rule("scale-invariant", "not divided by a deviation, or by its square", _scale_invariant),
    claim_rule("scale-equivariant", "a constant among the rewards, or a division by something that grows with them", _scale_equivariant),
    claim_rule("group-centred", "the baseline is not the mean of the group", _group_centred),
    claim_rule("unit-deviation", "the other deviation, with n instead of n - 1 in it, or that of something else", _unit_deviation),
    claim_rule(
        "independent-baseline", "the mean of the whole group: it holds the reward itself, unlike that of the others", _independent_baseline
    ),
    claim_rule("causal", "a sum from the front instead of from the end", _causal),
    claim_rule(
        "zero-at-perfect-values",
        "an error off by one: the value after token t is that of token t + 1, and 0 after the last",
        _zero_at_perfect_values,
    ),
)
