"""The objective: ``sum over terms of coef * sum over tokens of weight * loss``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import ONE_RANK, Batch, Ranks, Sequences
from ..numerics import accumulator, safe_divide
from ..registry import ColumnError, Level, LossaryError, Totals
from .bound import SPECIAL, Bound, View, scalar_like
from .estimating import RESULTS, Estimator, coefficient_of
from .memory import Memory
from .metrics import Measure, combined, measure
from .planning import costs_of, packed, part_of, parts_needed, shuffled, units_of
from .terms import Plan, Term

MODEL = ("log_prob", "entropy", "values", "log_z")
"""Columns that come from the model, inside ``loss``."""


@dataclass(frozen=True)
class LossOut:
    """What ``loss`` gives for one micro-batch. ``backward`` is called on ``total``, or on ``actor`` and ``critic`` apart."""

    total: Tensor
    actor: Tensor
    critic: Tensor
    terms: Mapping[str, Tensor]
    """Each term's share of the step's mean, before its coefficient and before any factor for the averaging of gradients."""
    reports: Mapping[str, Measure]


class Objective:
    """A recipe bound to components. ``estimate`` -> ``weigh`` -> ``split`` -> ``loss`` -> ``commit``; ``metrics`` at any time.

    ``estimate`` runs once per rollout, ``weigh`` once per optimizer step, ``loss`` once per micro-batch, ``commit`` after a step that
    was taken. Weights are made from global totals, so any split into micro-batches and ranks gives the gradient of the whole.
    """

    def __init__(self, plan: Plan, ranks: Ranks = ONE_RANK) -> None:
        if not isinstance(getattr(ranks, "grad_average", None), int) or ranks.grad_average < 1:
            raise LossaryError("ranks.grad_average must say over how many ranks gradients are averaged (1: they are summed).")
        if plan.scope == "step" and plan.approximate is None and ranks is not ONE_RANK:
            wide = ", ".join(t.bound.component.name for t in plan.terms if t.bound.component.scope == "step")
            raise LossaryError(
                f"{wide} needs the whole step on one rank; 'approximate: micro-batch' in the recipe accepts each rank's part for it."
            )
        self.plan, self.ranks, self.memory = plan, ranks, Memory()
        self._needs_of_model = self.needs("loss")
        self._estimate = Estimator(plan, self.memory, ranks)

    def __repr__(self) -> str:
        """Return what it adds up."""
        terms = ", ".join(f"{t.name}: {t.bound.component.name}" for t in self.plan.terms)
        return f"<Objective {self.plan.name}: {terms}; step {self.memory.step}>"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the recipe does that its components are not made for."""
        return self.plan.warnings

    @property
    def scope(self) -> str:
        """The widest scope of the terms: what micro-batches must keep together."""
        return "sequence" if self.plan.approximate and self.plan.scope == "step" else self.plan.scope

    def needs(self, stage: str = "estimate") -> dict[str, str]:
        """Return ``{column: who asks for it}`` that a batch must bring to ``estimate`` or ``weigh``, or a model to ``loss``."""
        wanted: dict[str, str] = {}
        bounds = [t.bound for t in self.plan.terms]
        for bound in bounds:
            for name, _, optional in bound.levels:
                if not optional and name not in SPECIAL and (name in MODEL) == (stage == "loss"):
                    wanted.setdefault(name, bound.who)
        if stage == "loss":
            return wanted
        if self.plan.old_log_prob == "current":
            wanted.pop("old_log_prob", None)
        aggregations = [self.plan.aggregations[t.aggregation] for t in self.plan.terms]
        grouped = [b for b in (*bounds, *aggregations) if b.component.scope == "group"]
        if stage == "estimate":
            grouped += [b for b in self.plan.advantages if b.component.scope == "group"]
            wanted = self._before_estimate(wanted)
        return {**wanted, **({"group_ids": grouped[0].who} if grouped else {})}

    def _before_estimate(self, wanted: dict[str, str]) -> dict[str, str]:
        made: set[str] = set()
        need: dict[str, str] = {}
        for bound in self.plan.advantages:
            for name, _, optional in bound.levels:
                if not optional and name not in (*SPECIAL, *made, "rewards", "token_rewards"):
                    need.setdefault(name, bound.who)
            made |= {"advantages"} if bound.component.returns is not None else set(RESULTS)
        for kl in self.plan.reward_kl:
            for name, _, optional in kl.bound.levels:
                if not optional and name not in SPECIAL:
                    need.setdefault("old_log_prob" if name == "log_prob" else name, f"{kl.bound.who} in the reward")
        return {**{n: w for n, w in wanted.items() if n not in made}, **need}

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────────

    def estimate(self, batch: Batch) -> Batch:
        """Once per rollout, without gradients: KL in the reward, advantages and returns, whitening; exact over ranks.

        Everything that any later stage reads is asked for here, so that a missing column is an error before the first step. A batch
        that lacks a column raises ``ColumnError``.
        """
        self._require(batch, "estimate")
        return self._estimate(batch)

    @torch.no_grad()
    def weigh(self, batch: Batch) -> Batch:
        """Once per optimizer step: count over all ranks, make each aggregation's weights, fix the coefficients of this step."""
        self._require(batch, "weigh")
        self.memory.forget("weigh")
        sequences = batch.sequences.across(self.ranks)
        self._require_whole_groups(batch, sequences)
        step = scalar_like(self.memory.step, batch.sequences.lengths)
        totals = self._totals(batch, sequences)
        view = View(batch, sequences, {}, totals=totals, step=step)
        weights = {}
        for key, bound in self.plan.aggregations.items():
            if any(t.aggregation == key for t in self.plan.terms):
                weights[key] = bound.shaped(bound(view), view, Level.TOKEN)  # as exact as it was made: only loss knows its dtype
        coefficients = {t.name: coefficient_of(t.coefficient, self.memory, "weigh", step) for t in self.plan.terms}
        return replace(batch, weights=weights, coefficients=coefficients, totals=totals)

    def _totals(self, batch: Batch, sequences: Sequences) -> Totals:
        lengths = sequences.lengths.to(accumulator(sequences.lengths))
        every = self.plan.empty == "count" and not batch.idle
        live = torch.ones_like(lengths, dtype=torch.bool) if every else lengths > 0
        tokens, count = self.ranks.sum(torch.stack([lengths.sum(), live.sum().to(lengths.dtype)])).unbind()
        groups = torch.zeros_like(tokens)
        if sequences.groups is not None:
            groups = (sequences.group_sum(live.to(lengths.dtype)) > 0).sum().to(lengths.dtype)
        return Totals(tokens, count, groups, tokens)

    def _require_whole_groups(self, batch: Batch, sequences: Sequences) -> None:
        """A loss that compares the sequences of a group sees one rank's only; the others would be left out without a word."""
        compared = [t.bound.who for t in self.plan.terms if t.bound.component.scope == "group"]
        if not compared or self.ranks is ONE_RANK:
            return
        here = batch.sequences.group_spread(batch.sequences.group_size())
        cut = (sequences.group_spread(sequences.group_size()) != here).any()
        if self.ranks.max(cut.to(torch.float64).reshape(1))[0]:  # all ranks raise together, or the others would wait for this one
            raise ColumnError(f"{compared[0]} compares the sequences of a group, but some groups lie on more than one rank.")

    def minibatches(self, batch: Batch, n: int, seed: int) -> list[Batch]:
        """Deal an estimated batch into ``n`` minibatches (one optimizer step each) in an order that follows from ``seed`` alone.

        Groups stay whole where a term's scope is the group. ``n`` minibatches come out on every rank, some of them without a token that
        counts if there are too few sequences.
        """
        if n < 1:
            raise LossaryError(f"minibatches: n is {n}; expected at least 1.")
        return [part_of(batch, chosen) for chosen in shuffled(units_of(batch, "group" if self.scope == "group" else "sequence"), n, seed)]

    def split(self, batch: Batch, max_tokens: int | None = None, parts: int | None = None) -> list[Batch]:
        """Cut a weighed batch into micro-batches at the widest scope of the terms, balanced by tokens, equally many on every rank.

        ``max_tokens`` bounds the tokens of each (prompts included where ``prompt_lengths`` is known); ``parts`` fixes their number. A
        rank with too few sequences gets parts of one row without any token that counts, to be run like the others. Each part's
        ``rows`` index the model's inputs. A sequence or group that alone exceeds ``max_tokens`` raises ``ColumnError``.
        """
        units = units_of(batch, self.scope)
        costs = costs_of(batch, units)
        needed = 1 if max_tokens is None else parts_needed(costs, max_tokens, self.scope if self.scope != "token" else "sequence")
        if parts is not None and needed > parts:
            raise LossaryError(f"split: {parts} parts of at most {max_tokens} tokens do not hold the batch; it needs {needed}.")
        n = parts if parts is not None else int(self.ranks.max(torch.tensor([needed], device=batch.rows.device))[0])
        if n == 1 and len(batch):
            return [batch]
        return [part_of(batch, sorted(s for u in part for s in units[u])) for part in packed(costs, n)]

    def loss(
        self,
        micro: Batch,
        *,
        log_prob: Tensor | None = None,
        entropy: Tensor | None = None,
        values: Tensor | None = None,
        log_z: Tensor | None = None,
        host_divides_by: int = 1,
    ) -> LossOut:
        """Return the loss of one micro-batch; its parts add up over micro-batches and ranks to the loss of the step.

        ``log_prob``, ``entropy``, ``values``: ``[N]`` packed, or in the batch's padded or nested shape; ``log_z``: ``[S]``. Half
        precision is widened here. ``host_divides_by`` undoes a host that divides every micro-batch's loss by the number of accumulated
        ones. Never waits for the device. Even a micro-batch without any token gives a loss that ``backward`` accepts, with gradient 0.
        """
        if not isinstance(host_divides_by, int) or host_divides_by < 1:
            raise LossaryError(f"host_divides_by is {host_divides_by!r}; expected how many micro-batches the host divides by, at least 1.")
        if micro.totals is None:
            raise LossaryError("this batch was not weighed: call objective.weigh(batch) once per optimizer step, then split, then loss.")
        outputs = self._outputs(micro, {"log_prob": log_prob, "entropy": entropy, "values": values, "log_z": log_z})
        made = {name: (x, Level.SEQUENCE if name == "log_z" else Level.TOKEN) for name, x in outputs.items()}
        if self.plan.old_log_prob == "current" and "log_prob" in outputs:
            made["old_log_prob"] = (outputs["log_prob"].detach(), Level.TOKEN)
        view = View(micro, micro.sequences, made, totals=micro.totals, step=None)
        reports: dict[str, Measure] = {}
        # Of a step's tokens; the shares of its micro-batches add up to 1, so a loss over several steps is reported as their mean.
        share = safe_divide(torch.full_like(micro.totals.tokens, micro.sequences.index.shape[0]), micro.totals.tokens)
        terms: dict[str, Tensor] = {}
        sides: dict[str, list[Tensor]] = {"actor": [], "critic": []}
        for term in self.plan.terms:
            terms[term.name] = value = self._term(term, micro, view, share, reports)
            sides[term.role].append(value if term.coefficient.fixed == 1 else micro.coefficients[term.name] * value)
        if "entropy" in outputs:
            reports.setdefault("actor/entropy", measure(outputs["entropy"], "entropy"))
        anchors = {"actor": [x for n, x in outputs.items() if n != "values"], "critic": [x for n, x in outputs.items() if n == "values"]}
        made_of = {role: self._side(parts, anchors[role], micro) for role, parts in sides.items()}
        reports.update({f"{role}/loss": Measure("mean", made_of[role].detach(), share) for role, parts in sides.items() if parts})
        factor = self.ranks.grad_average * host_divides_by
        dtype = next((x.dtype for x in outputs.values()), torch.float32)
        actor, critic = ((made_of[role] * factor if factor != 1 else made_of[role]).to(dtype) for role in ("actor", "critic"))
        # A role without terms still carries its anchors, unless the model brought nothing for it.
        return LossOut(actor + critic if anchors["critic"] or sides["critic"] else actor, actor, critic, terms, reports)

    def _outputs(self, micro: Batch, given: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        outputs: dict[str, Tensor] = {}
        for name, x in given.items():
            if x is None:
                x = micro.columns.get(name)
                if x is None:
                    continue
            elif name == "log_z" and x.shape != micro.sequences.lengths.shape:
                raise ColumnError(f"log_z has the shape {list(x.shape)}; expected [{len(micro)}], one value per sequence.")
            elif name != "log_z":
                x = micro.layout.pack(x, name)
            if not x.is_floating_point():
                raise ColumnError(f"{name} is {x.dtype}; expected real numbers of a floating type.")
            outputs[name] = x if x.dtype in (torch.float32, torch.float64) else x.float()
        for name, who in self._needs_of_model.items():
            if name not in outputs:
                raise ColumnError(f"{who} needs {name!r} from the model: loss(micro, {name}=...).")
        return outputs

    def _term(self, term: Term, micro: Batch, view: View, share: Tensor, reports: dict[str, Measure]) -> Tensor:
        bound, sequences, weight = term.bound, micro.sequences, micro.weights[term.aggregation]
        timed = any(name == "step" for name, _, _ in bound.levels)
        result, report, _ = bound.parts(replace(view, step=scalar_like(self.memory.step, micro.rows)) if timed else view)
        level = bound.component.returns or Level.TOKEN
        loss = bound.shaped(result, view, level)
        if torch.is_grad_enabled() and not loss.requires_grad and bound.learns(view):
            raise ColumnError(f"{bound.who} returned a loss without a gradient, though the model's output has one; was it detached?")
        if term.coefficient.bound is not None and any(n == "measured" for n, _, _ in term.coefficient.bound.levels):
            self.memory.observe(term.coefficient.key, loss, sequences, level)
        if level is not Level.TOKEN:
            weight = sequences.sum(weight)
            if level is Level.GROUP:
                weight = sequences.group_sum(weight)
            loss = torch.where(weight != 0, loss, 0.0)  # a sequence without tokens has no say, whatever was computed for it
        value = (weight.to(loss.dtype) * loss).sum(dtype=accumulator(loss))
        reports[term.metric] = Measure("mean", value.detach(), share)
        if term.coefficient.fixed != 1:
            reports[f"{term.role}/{term.name}_coef"] = Measure("mean", micro.coefficients[term.name] * share, share)
        for name, x in report.items():
            taken = f"{term.role}/{name}" in reports  # two terms may measure the same thing of different columns
            reports[f"{term.role}/{term.name}_{name}" if taken else f"{term.role}/{name}"] = measure(x, bound.who)
        return value

    def _side(self, parts: list[Tensor], outputs: list[Tensor], micro: Batch) -> Tensor:
        """Add up one role's terms; the model's outputs join with empty sums, so that a loss without tokens still has their graph."""
        total = sum(parts[1:], parts[0]) if parts else torch.zeros((), device=micro.rows.device)
        return sum((x[:0].sum() for x in outputs if x.requires_grad), total)

    # ── between steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def commit(self) -> None:
        """After an optimizer step that was taken: new states become current, from inputs reduced over ranks."""
        self.memory.commit(self.ranks)

    def metrics(self, *parts: "LossOut | Batch | Iterable[LossOut | Batch]") -> dict[str, float]:
        """Return the metrics of micro-batches' results (and of estimated batches), exact over micro-batches and ranks.

        Waits for the device once. All ranks must call it together.
        """
        flat = [p for part in parts for p in ([part] if isinstance(part, (LossOut, Batch)) else part)]
        return combined([p.reports for p in flat], self.ranks)

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs: the committed steps, states and measurements."""
        for key, bound in self._stateful():
            self.memory.state(key, bound)  # one that was never asked for is saved too, so that its absence means another recipe
        return self.memory.state_dict()

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back ``state_dict()``; the state of another recipe raises ``LossaryError``."""
        self.memory.load_state_dict(saved, {key for key, _ in self._stateful()})

    def _stateful(self) -> list[tuple[str, Bound]]:
        bounds = [(b.slot, b) for b in self.plan.advantages]
        coefficients = [*(t.coefficient for t in self.plan.terms), *(k.coefficient for k in self.plan.reward_kl)]
        bounds += [(c.key, c.bound) for c in coefficients if c.bound is not None]
        return [(key, b) for key, b in bounds if b.component.stateful]

    def _require(self, batch: Batch, stage: str) -> None:
        for name, who in self.needs(stage).items():
            if name not in batch:
                hint = " Give every sequence the id of its prompt." if name == "group_ids" else ""
                made = (
                    " Call objective.estimate(batch) first."
                    if stage == "weigh" and name in ("advantages", "returns") and self.plan.advantages
                    else ""
                )
                raise ColumnError(f"{who} needs the column {name!r}, which the batch does not bring.{hint}{made}")
