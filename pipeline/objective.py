"""The objective: ``sum over terms of coef * sum over tokens of weight * loss``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..batch import ONE_RANK, Batch, Ranks, Sequences
from ..numerics import accumulator, hashed_uniform
from ..registry import ColumnError, Level, LossaryError, Totals
from .bound import Bound, View, scalar_like
from .compiled import Graph
from .correcting import WEIGHT, corrected
from .estimating import Estimator, coefficient_of
from .memory import Memory
from .metrics import Measure, added, combined, measure
from .needs import needs, require
from .outputs import Outputs, certain, joined
from .piecewise import READ, Pieces, Policy, passing
from .planning import costs_of, dealt, packed, part_of, parts_needed, require_whole_groups, shuffled, units_of
from .sides import Side, side_of
from .summing import Summand, summand
from .terms import Plan
from .vocabulary import Logits


@dataclass(frozen=True)
class LossOut:
    """What ``loss`` gives for one micro-batch. ``backward`` is called on ``total``, or on ``actor`` and ``critic`` apart."""

    total: Tensor
    actor: Tensor
    critic: Tensor
    terms: Mapping[str, Tensor]
    """Each term's share of the step's mean, before its coefficient and before any factor for the averaging of gradients. Without a
    gradient where a head's one pass or a compiled graph did the term."""
    reports: Mapping[str, Measure]


class Objective:
    """A recipe bound to components. ``estimate`` -> ``weigh`` -> ``split`` -> ``loss`` -> ``commit``; ``metrics`` at any time.

    ``estimate`` runs once per rollout, ``weigh`` once per optimizer step, ``loss`` once per micro-batch, ``commit`` after a step that
    was taken. Weights are made from global totals, so any split into micro-batches and ranks gives the gradient of the whole. ``seed``
    is what the ``noise`` of a random selection is drawn from; ``chunk_tokens`` is how many tokens at a time a term over the whole
    vocabulary sees; ``compile_with`` is the backend of ``torch.compile`` for a recipe that says ``compile: true``.
    """

    def __init__(
        self, plan: Plan, ranks: Ranks = ONE_RANK, *, seed: int = 0, chunk_tokens: int = 1024, compile_with: str = "inductor"
    ) -> None:
        if not isinstance(getattr(ranks, "grad_average", None), int) or ranks.grad_average < 1:
            raise LossaryError("ranks.grad_average must say over how many ranks gradients are averaged (1: they are summed).")
        if chunk_tokens < 1:
            raise LossaryError(f"chunk_tokens is {chunk_tokens}; expected at least 1.")
        if plan.scope == "step" and plan.approximate is None and ranks is not ONE_RANK:
            bounds = (*(t.bound for t in plan.terms), *(c.bound for c in plan.corrections))
            wide = ", ".join(b.component.name for b in bounds if b.component.scope == "step")
            raise LossaryError(
                f"{wide} needs the whole step on one rank; 'approximate: micro-batch' in the recipe accepts each rank's part for it."
            )
        self.plan, self.ranks, self.memory, self.seed, self.chunk_tokens = plan, ranks, Memory(), seed, chunk_tokens
        self._needs_of_model = needs(plan, "loss")
        self._certain = certain(plan)
        self._summands = tuple(summand(t) for t in plan.terms)
        passed, self.one_pass = passing(plan)
        self._passing = tuple(s for s in self._summands if s.term in passed)
        self._apart = tuple(s for s in self._summands if s.term not in passed)
        self._draws = any(name == "noise" for t in plan.terms for name, _, _ in t.bound.levels)
        self._estimate = Estimator(plan, self.memory, ranks)
        self._graph = Graph(plan, self.memory, compile_with) if plan.compile else None

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

    @property
    def measures(self) -> bool:
        """Whether a correction waits for ``measure``: a pass of the current policy before ``weigh``."""
        return any(c.when == "measure" for c in self.plan.corrections)

    @property
    def pays(self) -> bool:
        """Whether ``estimate`` reads rewards, of either form."""
        return self._estimate.pays

    def needs(self, stage: str = "estimate") -> dict[str, str]:
        """Return ``{column: who asks for it}`` that a batch must bring to ``estimate`` or ``weigh``, or a model to ``measure`` or ``loss``."""
        return needs(self.plan, stage)

    # ── the stages ───────────────────────────────────────────────────────────────────────────────────────────────────

    def estimate(self, batch: Batch) -> Batch:
        """Once per rollout, without gradients: rewards, filters, advantages and returns, corrections; exact over ranks.

        Everything that any later stage reads is asked for here, so that a missing column is an error before the first step. A batch
        that lacks a column raises ``ColumnError``. Filters may leave fewer sequences; corrections may leave the actor fewer tokens
        (``batch.kept``). Waits for the device only where something may go.
        """
        require(self.plan, batch, "estimate")
        if self.plan.corrections and WEIGHT in batch and not batch.estimated:
            who = self.plan.corrections[0].bound.who
            raise ColumnError(f"the batch brings the column {WEIGHT!r}, which {who} of this recipe is to make; leave one of them out.")
        if self.plan.corrections:  # made anew, like advantages: what an earlier estimate weighed and dropped is not done twice
            batch = replace(batch, kept=None, measured=False).without([WEIGHT])
        return self._estimate(batch)

    @torch.no_grad()
    def measure(self, batch: Batch, *, log_prob: Tensor | None = None, entropy: Tensor | None = None) -> Batch:
        """Let corrections with ``decide: measure`` look at the current policy, so that what they drop leaves the denominators too.

        Between ``estimate`` and ``weigh``, on the batch of one optimizer step, with what the model gives for it now. The reports of the
        result are those of this pass alone. A correction that reads the policy and decides in ``loss`` needs none of this.
        """
        if batch.measured:
            raise LossaryError("this batch was measured already; weights and selections would be applied twice.")
        self._require_estimated(batch)
        rules = [c.bound for c in self.plan.corrections if c.when == "measure"]
        outputs = Outputs.of({"log_prob": log_prob, "entropy": entropy}, batch, needs(self.plan, "measure"), "measure(batch")
        made = outputs.made("actor")
        if self.plan.old_log_prob == "current" and "log_prob" in made:
            made["old_log_prob"] = made["log_prob"]
        return replace(corrected(rules, replace(batch, reports={}), made, self.ranks), measured=True)

    @torch.no_grad()
    def weigh(self, batch: Batch, totals: Totals | None = None) -> Batch:
        """Once per optimizer step: count over all ranks, make each aggregation's weights, fix the coefficients of this step.

        ``totals`` are the counts of the whole step where they are known already: then ``batch`` may be a part of it.
        """
        require(self.plan, batch, "weigh")
        self._require_estimated(batch)
        if self.measures and not batch.measured:
            rule = next(c.bound.who for c in self.plan.corrections if c.when == "measure")
            raise LossaryError(f"{rule} decides in measure: call objective.measure(batch, log_prob=...) before objective.weigh(batch).")
        self.memory.forget("weigh")
        if self._draws and "noise" not in batch:
            batch = batch.with_columns(Level.TOKEN, noise=self._noise(batch))
        whole = batch.sequences.across(self.ranks)
        compared = [t.bound.who for t in self.plan.terms if t.bound.component.scope == "group"]
        if compared and self.ranks is not ONE_RANK:
            require_whole_groups(compared[0], batch.sequences, whole, self.ranks)
        step = scalar_like(self.memory.step, batch.sequences.lengths)
        counted, totals = totals is None, self._totals(batch, whole) if totals is None else totals
        weights = self._weights("critic" if batch.kept is not None else "", batch, whole, totals, step)
        inner = batch.kept
        if inner is not None:
            if self.plan.denominator == "kept":
                if not counted and inner.totals is None:
                    raise LossaryError("the host counted all tokens, not those that corrections left: say 'denominator: original'.")
                sequences = inner.sequences.across(self.ranks)
                known = self._totals(inner, sequences) if counted or inner.totals is None else inner.totals
                left = replace(known, tokens_original=totals.tokens)
                inner = replace(inner, weights=self._weights("actor", inner, sequences, left, step), totals=left)
            else:
                all_tokens = self._weights("actor", batch, whole, totals, step)
                where = batch.kept_tokens
                inner = replace(inner, weights={key: w.index_select(0, where) for key, w in all_tokens.items()}, totals=totals)
        coefficients = {t.name: coefficient_of(t.coefficient, self.memory, "weigh", step) for t in self.plan.terms}
        return replace(batch, weights=weights, coefficients=coefficients, totals=totals, kept=inner)

    def _require_estimated(self, batch: Batch) -> None:
        """Raise ``LossaryError`` where what was to happen in ``estimate`` would be left out without a word."""
        plan = self.plan
        early = [
            *plan.rewards,
            *(kl.bound for kl in plan.reward_kl),
            *plan.filters,
            *(c.bound for c in plan.corrections if c.when == "estimate"),
        ]
        if early and not batch.estimated:
            raise LossaryError(f"{early[0].who} acts in estimate: call objective.estimate(batch) once per rollout, before this.")

    def _weights(self, role: str, batch: Batch, sequences: Sequences, totals: Totals, step: Tensor) -> dict[str, Tensor]:
        """Return the weights for the terms of a role, or of both; as exact as they were made, for only ``loss`` knows its dtype."""
        view = View(batch, sequences, {}, totals=totals, step=step)
        asked = {t.aggregation for t in self.plan.terms if role in ("", t.role)}
        return {key: bound.shaped(bound(view), view, Level.TOKEN) for key, bound in self.plan.aggregations.items() if key in asked}

    def _noise(self, batch: Batch) -> Tensor:
        ids = batch.columns.get("sequence_ids")
        if ids is None and self.ranks is not ONE_RANK:
            raise ColumnError("random selection over ranks needs the column 'sequence_ids', which says which sequence is which.")
        spread = batch.sequences.spread(batch.rows if ids is None else ids)
        return hashed_uniform(spread, batch.sequences.places, seed=self.seed, step=self.memory.step)

    def _totals(self, batch: Batch, sequences: Sequences) -> Totals:
        lengths = sequences.lengths.to(accumulator(sequences.lengths))
        every = self.plan.empty == "count" and not batch.idle
        live = torch.ones_like(lengths, dtype=torch.bool) if every else lengths > 0
        tokens, count = self.ranks.sum(torch.stack([lengths.sum(), live.sum().to(lengths.dtype)])).unbind()
        groups = torch.zeros_like(tokens)
        if sequences.groups is not None:
            groups = (sequences.group_sum(live.to(lengths.dtype)) > 0).sum().to(lengths.dtype)
        return Totals(tokens, count, groups, tokens)

    def minibatches(self, batch: Batch, n: int, seed: int) -> list[Batch]:
        """Deal an estimated batch into ``n`` minibatches (one optimizer step each) in an order that follows from ``seed`` alone.

        Groups stay whole where a term's scope is the group. Over ranks they are dealt together, where the column ``sequence_ids`` says which
        sequence is which; without it each rank deals its own. ``n`` minibatches come out on every rank, some of them without a token that
        counts if there are too few sequences.
        """
        if n < 1:
            raise LossaryError(f"minibatches: n is {n}; expected at least 1.")
        units = units_of(batch, "group" if self.scope == "group" else "sequence")
        over = self.ranks is not ONE_RANK and "sequence_ids" in batch
        return [part_of(batch, chosen) for chosen in (dealt(batch, units, n, seed, self.ranks) if over else shuffled(units, n, seed))]

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
        logits: Tensor | Logits | None = None,
        ref_logits: Tensor | Logits | None = None,
        teacher_logits: Tensor | Logits | None = None,
        value_logits: Tensor | Logits | None = None,
        policy: Policy | None = None,
        host_divides_by: int = 1,
    ) -> LossOut:
        """Return the loss of one micro-batch; its parts add up over micro-batches and ranks to the loss of the step.

        ``log_prob``, ``entropy``, ``values``: ``[N]`` packed, or in the batch's padded or nested shape; ``log_z``: ``[S]``. Logits have
        one more axis, or are ``Logits(hidden, weight)``, of which only chunks are ever spelt out. Half precision is widened here.
        ``policy=head.on(hidden)`` stands for log_prob, entropy and logits: then ``[N, V]`` is never there, and ``out.terms`` of what its one
        pass did are without gradients. ``host_divides_by`` undoes a host that divides every micro-batch's loss by the number of accumulated ones. Never waits for the
        device. Even a micro-batch without any token gives a loss that ``backward`` accepts, with gradient 0.
        """
        if not isinstance(host_divides_by, int) or host_divides_by < 1:
            raise LossaryError(f"host_divides_by is {host_divides_by!r}; expected how many micro-batches the host divides by, at least 1.")
        if micro.totals is None:
            raise LossaryError("this batch was not weighed: call objective.weigh(batch) once per optimizer step, then split, then loss.")
        given = {"log_prob": log_prob, "entropy": entropy, "values": values, "log_z": log_z, "logits": logits}
        given |= {"ref_logits": ref_logits, "teacher_logits": teacher_logits, "value_logits": value_logits}
        factor = self.ranks.grad_average * host_divides_by
        if policy is not None:
            return self._loss_through(policy, micro, given, factor)
        outputs = Outputs.of(given, micro, self._needs_of_model)
        reports: dict[str, Measure] = {}
        terms, parts, _ = self._terms(self._summands, micro, outputs, reports)
        return self._out(micro, outputs, terms, parts, reports, factor)

    def _loss_through(self, policy: Policy, micro: Batch, given: dict[str, Any], factor: int) -> LossOut:
        """Return the loss of hidden states: what looks at one token at a time by the head's one pass, the rest by log-probs that it gives."""
        if told := [name for name in READ if given[name] is not None]:
            raise ColumnError(f"loss was given {told[0]} and a policy, which has its own; leave one of them out.")
        policy, ids = policy.packed(micro.layout), micro["token_ids"].long()
        if not self.one_pass:
            given["log_prob"], given["entropy"] = policy.scores(ids)
        outputs = Outputs.of(given, micro, {name: who for name, who in self._needs_of_model.items() if name not in READ})
        reports: dict[str, Measure] = {}
        terms, parts, sides = self._terms(self._apart, micro, outputs, reports)
        if not self.one_pass and "actor" not in sides:  # rules that compare tokens must see them all
            sides["actor"] = side_of(self.plan, "actor", micro, outputs, reports)
        if not self._passing:
            return self._out(micro, outputs, terms, parts, reports, factor)
        inner, rows, seen, said = micro, outputs.rows_of("actor"), policy, ids
        if micro.kept is not None:
            inner, where = micro.kept, micro.kept_tokens
            rows = {name: r.select(where) for name, r in rows.items()}
            seen, said = policy.take(where), ids.index_select(0, where)
        pieces = Pieces(
            self.plan, self._passing, inner, micro.coefficients, rows, self.memory, sides.get("actor"), dict(reports), self._graph
        )
        parts["actor"].insert(0, seen.passed(said, pieces, factor))
        reports.update(pieces.reports)
        if self.one_pass:
            reports.setdefault("actor/entropy", self._entropy(policy, micro, ids, pieces))
        return self._out(micro, outputs, {**terms, **pieces.values()}, parts, reports, factor, policy.dtype)

    @torch.no_grad()
    def _entropy(self, policy: Policy, micro: Batch, ids: Tensor, pieces: Pieces) -> Measure:
        """Return the entropy of all tokens, those included that corrections dropped and no pass saw."""
        found = list(pieces.entropy)
        if micro.kept is not None:
            gone = micro.dropped_tokens
            found.append(measure(policy.take(gone).scores(ids.index_select(0, gone))[1], "entropy"))
        return added({"": m} for m in found)[""]

    def _terms(
        self, summands: tuple[Summand, ...], micro: Batch, outputs: Outputs, reports: dict[str, Measure]
    ) -> tuple[dict[str, Tensor], dict[str, list[Tensor]], dict[str, Side]]:
        """Return what terms come to over all tokens of a micro-batch, before their coefficients; what is to be added up; what they saw."""
        values: dict[str, Tensor] = {}
        parts: dict[str, list[Tensor]] = {"actor": [], "critic": []}
        if self._graph is not None and (fused := [s for s in summands if not s.words]):
            found, summands = self._graph(fused, micro, micro.coefficients, outputs, reports), tuple(s for s in summands if s.words)
            values |= found.values
            for role, x in found.sums.items():
                parts[role].append(x)
        sides = {role: side_of(self.plan, role, micro, outputs, reports) for role in sorted({s.term.role for s in summands})}
        for s in summands:
            term = s.term
            value = values[term.name] = s(sides[term.role], self.memory, self.chunk_tokens, reports)
            parts[term.role].append(value if term.coefficient.fixed == 1 else micro.coefficients[term.name] * value)
        return values, parts, sides

    def _out(
        self,
        micro: Batch,
        outputs: Outputs,
        terms: Mapping[str, Tensor],
        parts: Mapping[str, list[Tensor]],
        reports: dict[str, Measure],
        factor: int,
        dtype: torch.dtype | None = None,
    ) -> LossOut:
        """Report terms and add up the parts of each role."""
        share = micro.share  # so that a loss over several steps is reported as their mean
        for term in self.plan.terms:
            fixed = term.coefficient.fixed
            reports[term.metric] = Measure("mean", terms[term.name].detach(), share)
            if fixed != 1:
                known = Measure("mean", micro.coefficients[term.name] * share, share) if fixed is None else Measure("mean", fixed)
                reports[term.metric_of_coefficient] = known
        if "entropy" in outputs.columns and "actor/entropy" not in reports:
            reports["actor/entropy"] = measure(outputs.columns["entropy"], "entropy")
        dtype = dtype or outputs.dtype
        sums: dict[str, Tensor] = {}
        for role, found in parts.items():
            total = joined(found, outputs.anchors(role, self._certain))
            if total is None:  # a role without terms still carries its anchors, unless the model brought nothing for it
                continue
            if found:
                reports[f"{role}/loss"] = Measure("mean", total.detach(), share)
            sums[role] = (total * factor if factor != 1 else total).to(dtype)
        if len(sums) == 2:
            return LossOut(sums["actor"] + sums["critic"], sums["actor"], sums["critic"], terms, reports)
        nothing = torch.zeros((), dtype=dtype, device=micro.rows.device)
        total = next(iter(sums.values()), nothing)
        return LossOut(total, sums.get("actor", nothing), sums.get("critic", nothing), terms, reports)

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
        return self.memory.state_dict(self._uses())

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take back ``state_dict()``; the state of another recipe raises ``LossaryError``."""
        self.memory.load_state_dict(saved, self._uses())

    def _uses(self) -> dict[str, str]:
        return {key: bound.component.name for key, bound in self._stateful()}

    def _stateful(self) -> list[tuple[str, Bound]]:
        bounds = [(b.slot, b) for b in self.plan.advantages]
        coefficients = [*(t.coefficient for t in self.plan.terms), *(k.coefficient for k in self.plan.reward_kl)]
        bounds += [(c.key, c.bound) for c in coefficients if c.bound is not None]
        return [(key, b) for key, b in bounds if b.component.stateful]
