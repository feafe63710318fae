"""Once per rollout: rewards are shaped and lose the KL, sequences are filtered, advantages made, tokens corrected."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..batch import ONE_RANK, Batch, Ranks
from ..numerics import accumulator
from ..registry import ColumnError, Level, Max, Mean, Min, listing
from .bound import Bound, View, scalar_like
from .correcting import apart, corrected
from .memory import Memory
from .metrics import Measure, measure
from .planning import part_of
from .terms import Coefficient, Plan

Made = dict[str, tuple[Tensor, Level]]
RESULTS = ("advantages", "returns")
"""The columns that an advantage estimator may make."""
REWARDS = {"rewards", "token_rewards"}
_AWAY = " "
"""Before the name of a column that only travels with a batch that is being cut."""


class Estimator:
    """Runs a plan's estimators; what it makes replaces nothing that the batch brought but the columns named as its results."""

    def __init__(self, plan: Plan, memory: Memory, ranks: Ranks) -> None:
        self.plan, self.memory, self.ranks = plan, memory, ranks
        self.pays = bool(asked_of(plan) & REWARDS)

    @torch.no_grad()
    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with ``advantages`` (and ``returns``), corrected, and with reports."""
        self.memory.forget("estimate")
        step = scalar_like(self.memory.step, batch.sequences.lengths)
        reports: dict[str, Measure] = {}
        made: Made = {}
        if self.pays:
            made = self._rewards(batch, step, reports)
        all_of_it = batch
        if self.plan.filters:
            batch, made = self._filtered(batch, made, reports)
        made |= self._advantages(batch, made, step, reports)
        for name, (x, level) in made.items():
            if name not in REWARDS:
                batch = batch.with_columns(level, **{name: x})
                reports.update(_summary(f"critic/{name}", x))
        if not len(batch) and len(all_of_it):
            batch = _in_its_stead(all_of_it, batch)
        if self.plan.corrections:
            reports.update(apart(batch, self.ranks))
        batch = replace(batch, reports=reports, estimated=True)
        rules = [c.bound for c in self.plan.corrections if c.when == "estimate"]
        paid = {name: made[name] for name in REWARDS if name in made}
        return corrected(rules, batch, paid, self.ranks) if rules else batch

    def _advantages(self, batch: Batch, made: Made, step: Tensor, reports: dict[str, Measure]) -> Made:
        made, sequences = dict(made), batch.sequences.across(self.ranks)
        for bound in self.plan.advantages:
            self._look_at_groups(bound, batch)
            view = View(batch, sequences, made, step=step, state=self._state(bound))
            result, report, state = bound.parts(view)
            if state is not None:
                self.memory.wait("estimate", bound.slot, state)
            made.update(self._columns(bound, result, view))
            reports.update({f"critic/{name}": measure(x, bound.who) for name, x in report.items()})
        return made

    def _filtered(self, batch: Batch, made: Made, reports: dict[str, Measure]) -> tuple[Batch, Made]:
        """Let sequences go as if they had never been sampled."""
        for bound in self.plan.filters:
            view = View(batch, batch.sequences.across(self.ranks), made)
            keep, report, _ = bound.parts(view)
            if not isinstance(keep, Tensor) or keep.dtype != torch.bool or keep.shape != batch.sequences.lengths.shape:
                what = f"{keep.dtype} {list(keep.shape)}" if isinstance(keep, Tensor) else type(keep).__name__
                raise ColumnError(f"{bound.who} returned {what}; expected one boolean per sequence.")
            name = bound.component.name.replace("-", "_")
            reports[f"filter/{name}_kept"] = measure(Mean(keep), bound.who)
            reports.update({f"filter/{key}": measure(x, bound.who) for key, x in report.items()})
            with_them = batch
            for key, (x, level) in made.items():
                with_them = with_them.with_columns(level, **{_AWAY + key: x})
            rest = with_them.take([i for i, yes in enumerate(keep.tolist()) if yes])
            made = {key: (rest[_AWAY + key], level) for key, (_, level) in made.items()}
            batch = rest.without(_AWAY + key for key in made)
        return batch, made

    def _look_at_groups(self, bound: Bound, batch: Batch) -> None:
        """Warn of ids that are one per sequence: with nobody to compare with every advantage is 0, and nothing would be learned."""
        deliberate = bound.component.scope != "group" or bound.params.get("singleton") == "reward"
        if deliberate or self.ranks is not ONE_RANK or len(set(batch.groups)) < max(len(batch), 2):
            return
        say = "is alone in its group: expected several of each, got 1. Are group_ids those of the sequences instead of their prompts'?"
        warnings.warn(f"{bound.who}: every one of the {len(batch)} sequences {say}", stacklevel=4)

    def _state(self, bound: Bound) -> Mapping[str, Any] | None:
        return self.memory.state(bound.slot, bound) if bound.component.stateful else None

    def _columns(self, bound: Bound, result: Any, view: View) -> Made:
        if bound.component.returns is not None:
            return {"advantages": (bound.shaped(result, view, bound.component.returns), bound.component.returns)}
        if not isinstance(result, Mapping):
            raise ColumnError(f"{bound.who} returned {type(result).__name__}; its signature promises columns by name.")
        if strange := [name for name in result if name not in RESULTS]:
            raise ColumnError(f"{bound.who} made the column {strange[0]!r}; an advantage estimator makes {listing(RESULTS)} and no other.")
        return {name: (bound.shaped(x, view, Level.TOKEN), Level.TOKEN) for name, x in result.items()}

    def _rewards(self, batch: Batch, step: Tensor, reports: dict[str, Measure]) -> Made:
        """Return both forms of the reward: per sequence (with all token rewards) and per token (the rest on the last token)."""
        sequences = batch.sequences
        if "rewards" not in batch and "token_rewards" not in batch:
            raise ColumnError("the batch brings no reward: give 'rewards' (one per sequence) or 'token_rewards' (one per token).")
        given = batch.columns.get("rewards")
        tokens = (
            batch.column("token_rewards", Level.TOKEN)
            if "token_rewards" in batch and batch.levels["token_rewards"] is Level.TOKEN
            else None
        )
        if "token_rewards" in batch and tokens is None:
            raise ColumnError("'token_rewards' has one value per sequence; give those as 'rewards'.")
        score = _total(given, None if tokens is None else sequences.sum(tokens))
        reports.update(_summary("critic/score", score))
        dtype = score.dtype
        if self.plan.rewards:  # steps may differ by orders of magnitude, and what one of them leaves is found by a difference
            given, tokens = (None if x is None else x.to(accumulator(x)) for x in (given, tokens))
        for bound in self.plan.rewards:
            given, tokens = self._shaped(bound, batch, given, tokens, reports)
        for kl in self.plan.reward_kl:
            value = self._penalty(batch, kl.bound, reports, kl.name)
            coefficient = coefficient_of(kl.coefficient, self.memory, "estimate", step)
            reports[f"critic/{kl.name}_coef"] = measure(coefficient, kl.name)
            self.memory.settle(kl.coefficient.key, value, sequences, self.ranks)
            penalty = -coefficient.to(value.dtype) * value
            tokens = penalty if tokens is None else tokens + penalty
        paid = {name: (x.to(dtype), level) for name, (x, level) in _paid(batch, given, tokens).items()}
        reports.update(_summary("critic/rewards", paid["rewards"][0]))
        return paid

    def _shaped(
        self, bound: Bound, batch: Batch, given: Tensor | None, tokens: Tensor | None, reports: dict[str, Measure]
    ) -> tuple[Tensor | None, Tensor | None]:
        """Run one step of the shaping; what it changed of a sequence's total is paid on the last token, or where it said."""
        paid, sequences = _paid(batch, given, tokens), batch.sequences
        view = View(batch, sequences.across(self.ranks), paid)
        result, report, _ = bound.parts(view)
        level = bound.component.returns or Level.TOKEN
        before = paid["rewards" if level is Level.SEQUENCE else "token_rewards"][0]
        after = bound.shaped(result, view, level).to(before.dtype)
        reports[f"critic/reward_{bound.component.name.replace('-', '_')}"] = measure(after - before, bound.who)
        reports.update({f"critic/{key}": measure(x, bound.who) for key, x in report.items()})
        if level is Level.SEQUENCE:
            return after if tokens is None else after - sequences.sum(tokens), tokens
        # Everything is on tokens now, but for sequences without any.
        return None if given is None else torch.where(sequences.lengths > 0, 0.0, given), after

    def _penalty(self, batch: Batch, bound: Bound, reports: dict[str, Measure], name: str) -> Tensor:
        if "old_log_prob" not in batch:
            raise ColumnError(f"{bound.who} in the reward needs the column 'old_log_prob', which the batch does not bring.")
        view = View(batch, batch.sequences, {"log_prob": (batch.column("old_log_prob", Level.TOKEN), Level.TOKEN)})
        value, report, _ = bound.parts(view)
        reports[f"critic/reward_{name}"] = measure(value, bound.who)
        reports.update({f"critic/{key}": measure(x, bound.who) for key, x in report.items()})
        return bound.shaped(value, view, Level.TOKEN)


def asked_of(plan: Plan) -> set[str]:
    """Return what the stages that see rewards ask for."""
    rules = [c.bound for c in plan.corrections if c.when == "estimate"]
    return {name for bound in (*plan.rewards, *plan.filters, *plan.advantages, *rules) for name, _, _ in bound.levels}


def _in_its_stead(whole: Batch, nothing: Batch) -> Batch:
    """Return a row that a model can be run on, for a rank that filters left without any; it counts nowhere."""
    row = part_of(whole, [])
    for name in set(nothing.columns) - set(row.columns):
        x, level = nothing[name], nothing.levels[name]
        row = row.with_columns(level, **{name: x if level is Level.TOKEN else x.new_zeros(1, *x.shape[1:])})
    return row


def _paid(batch: Batch, given: Tensor | None, tokens: Tensor | None) -> Made:
    """Return both forms of the reward: of the whole sequence, and on its tokens."""
    sequences = batch.sequences
    total = _total(given, None if tokens is None else sequences.sum(tokens))
    placed = _total(None if given is None else sequences.place_last(given), tokens)
    return {"rewards": (total, Level.SEQUENCE), "token_rewards": (placed, Level.TOKEN)}


def coefficient_of(coefficient: Coefficient, memory: Memory, stage: str, step: Tensor) -> Tensor:
    """Return a term's coefficient for this step as a 0-d tensor; a new state waits for the commit."""
    bound = coefficient.bound
    if bound is None:
        return torch.full_like(step, coefficient.fixed or 0.0)
    state = memory.state(coefficient.key, bound) if bound.component.stateful else None
    special = {"step": step, "state": state, "measured": memory.measured(coefficient.key, step)}
    out = bound.call([special[name] for name, _, _ in bound.levels])
    if bound.component.stateful:
        if not (isinstance(out, tuple) and len(out) == 2):
            raise ColumnError(f"{bound.who} names 'state' and must return (coefficient, new_state).")
        out, new = out
        memory.wait(stage, coefficient.key, new)
    if not isinstance(out, (int, float, Tensor)) or isinstance(out, bool) or (isinstance(out, Tensor) and out.dim()):
        raise ColumnError(f"{bound.who} returned {out!r}; expected one number.")
    return torch.as_tensor(out).to(device=step.device, dtype=step.dtype)


def _total(a: Tensor | None, b: Tensor | None) -> Tensor:
    if a is None or b is None:
        found = a if b is None else b
        assert found is not None
        return found
    return a + b


def _summary(name: str, x: Tensor) -> dict[str, Measure]:
    return {f"{name}/{key}": measure(make(x), name) for key, make in (("mean", Mean), ("max", Max), ("min", Min))}
