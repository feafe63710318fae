"""What a component claims of itself: by a name from ``registry.claims``, or because every component of its kind must keep it."""

import torch
from torch import Tensor

from . import advantages
from .case import WORDS, Case
from .check import Rule
from .claiming import agreeing, claim_rule, close, only
from .subject import Off, Subject, on

# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _on_policy_gradient(subject: Subject, case: Case) -> None:
    with on(agreeing(case)) as there:
        _is_minus_the_advantage(subject, there)


def _is_minus_the_advantage(subject: Subject, there: Case) -> None:
    inputs = subject.inputs(there, learn=True)
    (part,) = subject.run(inputs).parts.values()
    (found,) = torch.autograd.grad(part.x.sum(), [inputs.leaves["log_prob"]])
    close("the gradient by log_prob", -there.columns["advantages"], found, ", minus the advantage", rtol=1e-7, atol=1e-9)


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
    if not (weight > 0).any():
        raise Off("a weight above 0 where there are tokens", "no other than 0", "a product with 0, or a count turned upside down")
    live = [i for i, n in enumerate(case.lengths) if n]
    inputs = subject.inputs(case.take(live))
    close("the weight", weight, only(subject.run(inputs)), " whether or not empty sequences lie in between")


def _sums_to_one(subject: Subject, case: Case) -> None:
    if case.tokens:
        total = only(subject.run(subject.inputs(case))).sum()
        close("the sum of the weights", torch.ones(1, dtype=torch.float64), total[None].double())


# ── corrections, coefficients ────────────────────────────────────────────────────────────────────────────────────────


def _bounded_weight(subject: Subject, case: Case) -> None:
    result = subject.run(subject.inputs(case))
    if "weight" in result.parts:
        weight = result.parts["weight"].x
        if not weight.isfinite().all() or (weight < 0).any():
            raise Off("finite weights that are not below 0", f"{weight[~weight.isfinite() | (weight < 0)][0].item():.6g}")


def _corrects_direction(subject: Subject, case: Case) -> None:
    """The sampler found the tokens of one sequence likelier than the trainer, then less likely; elsewhere both agree."""
    there = agreeing(case.take([i for i, n in enumerate(case.lengths) if n]))
    for i in range(len(there.lengths)):
        mine = there.index == i
        ends = []
        for gap in (-0.3, 0.3):
            sampled = there.columns["rollout_log_prob"] - torch.where(mine, gap, 0.0).double()
            with on(there.having(rollout_log_prob=sampled)) as moved:
                part = subject.run(subject.inputs(moved)).parts.get("weight")
                if part is None:
                    raise Off("weights", "none")
                ends.append(float(part.of(moved, [i]).sum()))
        if not ends[1] > ends[0]:
            raise Off(f"weights of sequence {i}, by 0.3 nats likelier to the trainer, above {ends[0]:.6g} in all", f"{ends[1]:.6g}")


def _neutral(subject: Subject, case: Case) -> None:
    with on(agreeing(case)) as there:
        for name, part in subject.run(subject.inputs(there)).parts.items():
            close("the weight" if name == "weight" else "keep", torch.ones_like(part.x).double(), part.x.double(), " where both agree")


RULES = (
    claim_rule(
        "on-policy-gradient",
        "a sign, a weight that should be detached and is not (its own gradient adds to it), or a mean inside",
        _on_policy_gradient,
        long=True,
    ),
    claim_rule("pulls-back", "the clip on the wrong side: max of the two losses, not min; or bounds that are swapped", _pulls_back),
    claim_rule(
        "zero-at-equality", "a constant left over (k3 is exp(-d) - 1 + d), or the two sides taken from different columns", _zero_at_equality
    ),
    claim_rule("non-negative", "the log-ratio with the wrong sign, or clipped on one side only", _non_negative),
    claim_rule("unbiased", "the ratio upside down: k3 reads ref over policy for tokens that the policy sampled", _unbiased),
    claim_rule(
        "unbiased-gradient",
        "the gradient of an unbiased value is not an unbiased gradient; the score function is missing",
        _unbiased_gradient,
    ),
    Rule(
        "weights",
        "Its weights are finite, not below 0 and not all 0, and sequences without a token change none.",
        "a count of rows instead of totals.sequences, or a division by a length of 0",
        lambda c: c.kind.name == "aggregation",
        _weights,
        long=True,
        per_number=True,
    ),
    claim_rule(
        "sums-to-one", "divided by the wrong count: totals has tokens, sequences and groups of the whole step", _sums_to_one, long=True
    ),
    *advantages.RULES,
    Rule(
        "weights-bounded",
        "Its weights are finite and not below 0.",
        "an exp without a cap",
        lambda c: c.kind.name == "correction" and c.weighs,
        _bounded_weight,
    ),
    claim_rule(
        "corrects-direction", "the ratio upside down: what weighs is the trainer's probability over the sampler's", _corrects_direction
    ),
    claim_rule("neutral-at-agreement", "a ratio without exp, or a threshold that excludes 1", _neutral),
)
