"""What a run's metric lines tell: rules with stated thresholds, silent when fine. Each is a pure function of the lines so far."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .finding import Finding, Place

Line = Mapping[str, Any]
WINDOW = 20
"""Steps that a trend is taken over."""
USUAL = 5
"""Steps that must have been seen before anything is called unusual."""
SPIKE, KL = 10.0, 0.1
"""A KL spikes when it is this many times the median of the window, and at least this large [nats]."""
COLLAPSED, FLOOR = 0.1, 0.02
"""Entropy has collapsed below this share of its first value where accuracy stays below ``SURE``, or below this many nats."""
SURE = 0.9
RISE, FLAT = 0.1, 0.01
"""Reward is up by this share of its range while held-out accuracy moved by less than this."""
EVALUATIONS = 3
FIRST, LAST = 50, 500
"""Lines of a long run that are looked at: where it began, and where it is."""
TIED = 0.9
"""Share of groups without spread, where accuracy stays below ``SURE``: a task that is solved has no spread either."""
CLIPPED, LONG = 0.3, 3
"""Clip fraction above which, for this many steps running, an update is mostly clipping."""
OLD = 4.0
"""Optimizer steps, or versions of the policy, between sampling and training."""


Said = tuple[str, str, str] | None


@dataclass(frozen=True)
class RunRule:
    """A rule: what its last line must hold, and a function of the lines, the last of which is the one in question."""

    name: str
    threshold: str
    function: Callable[[Sequence[Line]], Said]


def _series(lines: Sequence[Line], name: str, n: int | None = None) -> list[float]:
    """Return the last ``n`` finite values of a metric."""
    found = [float(line[name]) for line in lines if isinstance(line.get(name), (int, float)) and math.isfinite(line[name])]
    return found if n is None else found[-n:]


def kl_spike(lines: Sequence[Line]) -> Said:
    """Compare each KL with the median of the window before."""
    for name in ("actor/ppo_kl", "actor/kl_loss", "critic/reward_kl"):
        if name not in lines[-1]:
            continue
        *before, now = _series(lines, name, WINDOW + 1) or [0.0]
        if len(before) >= USUAL and abs(now) > KL and abs(now) > SPIKE * median(map(abs, before)):
            return (
                f"{name} is {now:.3g} nats; the median of the {len(before)} steps before is {median(before):.3g}",
                "the update was too large: a few tokens became extreme, and ratios are far from 1",
                "lower the learning rate and look at the clip range before the coefficient of the KL; lossary doctor names the tokens",
            )
    return None


def entropy_collapse(lines: Sequence[Line]) -> Said:
    """Compare the entropy with that of the first steps, and with 0."""
    found = _series(lines, "actor/entropy")
    if "actor/entropy" not in lines[-1] or len(found) <= USUAL or _solved(lines):
        return None
    first, now = median(found[:USUAL]), found[-1]
    rewards = _series(lines, "reward", 2 * USUAL)
    learns = len(rewards) == 2 * USUAL and sum(rewards[USUAL:]) > sum(rewards[:USUAL]) * (1 + 1e-3)
    if now < FLOOR or (now < COLLAPSED * first and not learns):
        return (
            f"actor/entropy is {now:.3g} nats; it began at {first:.3g}",
            "all answers to a prompt become alike: groups are tied, and nothing more is learned",
            "raise the coefficient of entropy, or clip_ratio_high; stop at the last checkpoint before",
        )
    return None


def overfit(lines: Sequence[Line]) -> Said:
    """Compare the training reward with held-out accuracy over the last evaluations."""
    at = [i for i, line in enumerate(lines) if "eval/accuracy" in line and "reward" in line]
    if len(at) < EVALUATIONS:
        return None
    since = at[-EVALUATIONS]
    scores = [float(lines[i]["eval/accuracy"]) for i in at[-EVALUATIONS:]]
    rewards = _series(lines[: since + 1], "reward"), _series(lines[since + 1 :], "reward", USUAL)
    if len(rewards[0]) < USUAL or not rewards[1]:
        return None
    every = _series(lines, "reward")
    before, now = sum(rewards[0][-USUAL:]) / USUAL, sum(rewards[1]) / len(rewards[1])
    if max(scores) - scores[0] < FLAT and now - before > RISE * max(max(every) - min(every), 1e-9) and not _solved(lines):
        return (
            f"reward rose from {before:.3g} to {now:.3g} over the last {EVALUATIONS} evaluations, held-out accuracy went {scores[0]:.3g} -> {scores[-1]:.3g}",
            "the policy learns what the judge pays for, or the training prompts by heart, and not the task",
            "read ten answers; raise the coefficient of the KL; look whether training and held-out prompts are alike",
        )
    return None


def zero_variance(lines: Sequence[Line]) -> Said:
    """Look at the share of groups without spread, over all and by length of prompt."""
    if (share := lines[-1].get("groups/zero_variance")) is not None and share > TIED and not _solved(lines):
        recent = _series(lines, "groups/zero_variance", LONG)
        if len(recent) == LONG and min(recent) > TIED:
            return (
                f"{100 * share:.3g} % of the groups have no spread of rewards, for {LONG} steps",
                "a group whose answers are all right or all wrong teaches nothing",
                "other prompts, more answers to each, or a finer reward; filter: group-spread drops such groups",
            )
    return None


def _solved(lines: Sequence[Line]) -> bool:
    scores = _series(lines, "eval/accuracy")
    return bool(scores) and scores[-1] >= SURE


def bucket(lines: Sequence[Line]) -> Said:
    """Find lengths of prompts whose groups never had a spread, while others had."""
    names = sorted(name for name in lines[-1] if name.startswith("groups/zero_variance/"))
    dead = []
    for name in names:
        recent = _series(lines, name, WINDOW)
        if len(recent) == WINDOW and min(recent) == 1:
            dead.append(name.rpartition("/")[2])
    if dead and len(dead) < len(names) and not _solved(lines):
        return (
            f"no group of prompts of {', '.join(dead)} had a spread of rewards in {WINDOW} steps",
            "this part of the data is too easy or too hard: it costs rollouts and teaches nothing",
            "leave these prompts out for now, or bring easier and harder ones",
        )
    return None


def clip_saturated(lines: Sequence[Line]) -> Said:
    """Look for steps running in which most of the update was clipped."""
    recent = _series(lines, "actor/pg_clipfrac", LONG)
    if "actor/pg_clipfrac" in lines[-1] and len(recent) == LONG and min(recent) > CLIPPED:
        return (
            f"actor/pg_clipfrac is {recent[-1]:.3g}, above {CLIPPED:g} for {LONG} steps",
            "a clipped token teaches nothing: most of the rollout is spent",
            "fewer epochs or minibatches on one rollout, or a lower learning rate",
        )
    return None


def stale(lines: Sequence[Line]) -> Said:
    """Look at how old the policy was that sampled the tokens."""
    age = lines[-1].get("rollout/age")
    if age is not None and age > OLD:
        return (
            f"tokens were sampled up to {age:g} versions of the policy before this step",
            "ratios are far from 1, and most of them clipped",
            "bound the queue between sampler and trainer, or correct by the sampler's log-probabilities",
        )
    return None


def mismatch(lines: Sequence[Line]) -> Said:
    """Look at the distance of sampler and trainer, where it is reported."""
    ess, k3 = lines[-1].get("rollout_corr/rollout_is_eff_sample_size"), lines[-1].get("rollout_corr/k3_kl")
    if (ess is not None and ess < 0.5) or (k3 is not None and k3 > KL):
        return (
            f"sampler and trainer are {k3 if k3 is not None else float('nan'):.3g} nats apart, effective sample size {ess if ess is not None else float('nan'):.3g}",
            "the tokens were sampled from another policy than the one that is trained",
            "compare temperature, filters, dtype and weights of sampler and trainer; then a tighter correction",
        )
    return None


RULES = (
    RunRule("kl-spike", f"a KL above {KL:g} nats and {SPIKE:g} times the median of the last {WINDOW} steps", kl_spike),
    RunRule("entropy-collapse", f"entropy below {FLOOR:g} nats, or below {COLLAPSED:g} of its first while reward does not rise; accuracy below {SURE:g}", entropy_collapse),
    RunRule("reward-up-held-out-flat", f"reward up by {RISE:g} of its range, accuracy by less than {FLAT:g}, over {EVALUATIONS} evaluations", overfit),
    RunRule("zero-variance", f"more than {TIED:g} of the groups without spread for {LONG} steps", zero_variance),
    RunRule("zero-variance-bucket", f"all groups of one length of prompt without spread for {WINDOW} steps, others not", bucket),
    RunRule("clip-saturated", f"clip fraction above {CLIPPED:g} for {LONG} steps", clip_saturated),
    RunRule("stale-data", f"tokens more than {OLD:g} versions old", stale),
    RunRule("rollout-mismatch", f"effective sample size below 0.5, or k3 above {KL:g} nats", mismatch),
)  # fmt: skip
"""Every rule."""


def warned(lines: Sequence[Line]) -> list[Finding]:
    """Return what strikes at the last line; a rule that struck at the line before is not repeated."""
    if not lines or "step" not in lines[-1]:
        return []
    if len(lines) > FIRST + LAST:
        lines = [*lines[:FIRST], *lines[-LAST:]]
    said: list[Finding] = []
    for rule in RULES:
        now = rule.function(lines)
        if now is not None and (len(lines) == 1 or rule.function(lines[:-1]) is None):
            said.append(Finding(rule.name, "warning", Place(step=int(lines[-1]["step"])), *now))
    return said
