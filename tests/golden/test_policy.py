"""Every policy loss against the numbers that other frameworks' own code gave: loss, loss of each token, gradient and metrics."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from golden.policy_corrections import bare, chained, plan_of
from golden.policy_plans import Plan, case_of, valid
from golden.records import COMPONENTS, ELSEWHERE, POLICY, Book, Key, Record, call, difference, leaves, totals_of
from torch import Tensor

from lossary.batch import Batch
from lossary.registry import Level, Mean

DELIBERATE: Mapping[Key, tuple[str, str]] = {
    ("roll", "mode=agg_loss_roll & agg=token-mean"): (
        "framework-bug",
        "ROLL's token-mean adds up masked positions too; ours has none.",
    ),
    ("liger-kernel", "loss_type=luspo & !importance_sampling_level=sequence"): (
        "counts-padding",
        "Liger's luspo averages over the padded width and counts padding as tokens; ours sums the tokens.",
    ),
    ("trinity-rft", "mode=sapo"): (
        "framework-bug",
        "Trinity detaches the gate, which turns its falling weight into a rising one.",
    ),
    ("trl", "mode=gmpo & data=empty-row & !beta=*"): (
        "counts-padding",
        "A row without any token has the loss -A in TRL's GMPO; ours has none.",
    ),
    ("trl", "mode=rloo_seq_ppo & data=empty-row"): (
        "counts-padding",
        "A row without any token has the ratio 1 and the loss -A in TRL's RLOO; ours has none.",
    ),
    ("trl", "mode=a2po & data=empty-row"): (
        "counts-padding",
        "A row without any token has a loss in TRL's A2PO; ours has none.",
    ),
    ("verl-recipe", "mode=gvpo & data=empty-row"): (
        "framework-bug",
        "A row without any token makes the recipe's loss 0/0; ours leaves it out of its group.",
    ),
    ("verl-recipe", "mode=flowrl & data=empty-row"): (
        "counts-padding",
        "A row without any token has the loss log_z squared in the recipe; ours has none.",
    ),
    ("ms-swift", "mode=real & data=empty-row"): (
        "counts-padding",
        "A row without any token stands for a bad answer in ms-swift; in ours it is no answer.",
    ),
    ("trl", "mode=high_entropy_mask & data=rounded-threshold"): (
        "hidden-float32",
        "TRL compares entropies with a threshold rounded to float32 and so drops the token that is the threshold; ours keeps it.",
    ),
    ("verl", "mode=offpolicy_metrics & data=empty-row"): (
        "counts-padding",
        "verl counts a row without any token as one of perplexity 1; ours as none.",
    ),
}
"""Records that differ on purpose: ``(reason, what differs)``. A word is one that ``words`` yields."""


def words(r: Record) -> Iterator[str]:
    yield from (f"{name}={r[name]}" for name in ("mode", "variant", "agg"))
    yield from (f"input={name}" for name in r["inputs"])
    yield from leaves(r["hyperparameters"], "")
    x = valid(r, "ref_log_prob") - valid(r, "log_prob")
    if (torch.expm1(x) - x).max() > 10:
        yield "data=k3-above-10"
    if not (case_of(r)[1] > 0).any(1).all():
        yield "data=empty-row"
    if (share := r["hyperparameters"].get("top_entropy_quantile")) is not None:
        h = valid(r, "entropy")
        if ((h >= h.quantile(1 - share)) != (h >= h.float().quantile(1 - share).double())).any():
            yield "data=rounded-threshold"


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def batch_of(r: Record, plan: Plan) -> tuple[Batch, Tensor]:
    """Return the batch of a record's case and its padded log-probabilities, which want a gradient."""
    case, mask = case_of(r)
    named = {n: x for n, x in case.items() if n not in ("uid", "score")}
    for ours, theirs in plan.columns.items():
        named[ours] = case[theirs] if theirs in case else advantages_of(theirs, case, mask, plan)
    named |= {ours: make(r) for ours, make in plan.made.items()}
    leaf = named["log_prob"].clone().requires_grad_()
    borders = torch.arange(mask.shape[0]).clamp(max=2) // 2  # the prompts' borders that skyrl's records were made with
    groups = case["uid"].long() if plan.groups == "uid" else borders
    return Batch.from_padded(mask, **{**named, "log_prob": leaf}, group_ids=groups), leaf


def advantages_of(what: str, case: Mapping[str, Tensor], mask: Tensor, plan: Plan) -> Tensor:
    """Return the advantages that a framework makes of a case."""
    x = case["advantages"]
    if what == "first column":
        return x[:, :1].expand_as(x)
    if what == "mean of the row":
        return ((x * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(mask)
    assert what.startswith("teacher over ")
    student = Batch.from_padded(mask, log_prob=case[what.removeprefix("teacher over ")], ref_log_prob=case["teacher_log_prob"])
    return student.unpack(-call("kl", "k1", {"log_ratio_bound": None, "cap": plan.cap}, student))


@dataclass(frozen=True)
class Ours:
    """The result in the record's own form."""

    loss: Tensor
    per_token: Tensor
    grad: Tensor
    reports: Mapping[str, Mean]


def run(r: Record, plan: Plan) -> Ours:
    whole, leaf = batch_of(r, plan)
    correction, keep = chained(whole, plan)
    batch = whole.select(keep)
    counted = batch if plan.denominator == "kept" else whole
    totals = totals_of(counted, plan.empty, plan.totals)
    weight = call("aggregation", plan.aggregation, plan.params, counted, totals)
    assert weight.dtype == torch.float64
    weight, correction = weight if counted is batch else weight[keep], correction[keep]
    total, shown, reports = torch.zeros((), dtype=torch.float64), torch.zeros_like(weight), {}
    for term in plan.terms:
        out = call(term.kind, term.name, term.params, batch, totals)
        loss, report = out if isinstance(out, tuple) else (out, {})
        weighed = weight * correction if term.kind == "policy_loss" and plan.corrections else weight
        per = raised(weighed, batch, COMPONENTS[term.kind, term.name].returns)
        total = total + term.coef * (per * torch.where(per != 0, loss, 0.0)).sum()
        if loss.shape == shown.shape:
            shown = shown + term.coef * (correction * loss if term.kind == "policy_loss" else loss)
        reports.update({name: x for name, x in report.items() if isinstance(x, Mean)})
    total.backward()
    assert leaf.grad is not None
    each = torch.full((len(keep),), float("nan"), dtype=torch.float64)  # of a dropped token frameworks say various things
    each[keep] = (weight * shown if plan.tokens == "weighted" else shown).detach()
    return Ours(total.detach(), whole.unpack(each, float("nan")), leaf.grad, reports)


def raised(weight: Tensor, batch: Batch, level: Level | None) -> Tensor:
    """Return the weights of sequences or groups: the sums of their tokens'."""
    if level is Level.TOKEN:
        return weight
    each = batch.sequences.sum(weight)
    return batch.sequences.group_sum(each) if level is Level.GROUP else each


def mean_of(measured: Mean) -> Tensor:
    x = measured.x.double()
    return (x if measured.where is None else x[measured.where]).mean()


def tensor(x: Any) -> Tensor:
    if isinstance(x, list):
        return torch.stack([tensor(y) for y in x])
    return torch.tensor(float("nan") if x is None else float(x), dtype=torch.float64)


def differences(r: Record) -> list[str]:
    """Return what of a record ours does not meet."""
    plan = plan_of(r)
    tolerance = (2e-5 if "float32" in r["dtype"] else 1e-6), 1e-9
    if not plan.terms:
        return bare(r, plan, batch_of(r, plan)[0], tensor, tolerance[0])
    ours = run(r, plan)
    found = difference("loss", ours.loss, tensor(r["loss"]), *tolerance)
    if r["grad_log_prob"] is not None:
        found += difference("grad_log_prob", ours.grad, tensor(r["grad_log_prob"]), *tolerance)
    if r["loss_per_token"] is not None and plan.tokens != "else":
        theirs = tensor(r["loss_per_token"])
        seen = ~theirs.isnan() & ~ours.per_token.isnan()
        found += difference("loss_per_token", ours.per_token[seen], theirs[seen], *tolerance)
    mask = torch.tensor(POLICY["cases"][r["case"]]["response_mask"]) > 0
    for mine, theirs in plan.metrics.items():
        if mine in ours.reports:
            value = tensor(r["metrics"][theirs])
            found += difference(mine, mean_of(ours.reports[mine]), value[mask].mean() if value.dim() else value, *tolerance)
    return found


BOOK = Book("golden_policy.json", POLICY["records"], words, differences, DELIBERATE)


# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("identity", BOOK.compared)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(BOOK.records[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE, ids=" ".join)
def test_what_differs_on_purpose_does_differ(key: Key) -> None:
    BOOK.check_deliberate(key)


def test_nothing_is_dropped_and_little_differs() -> None:
    BOOK.check_sum()


@pytest.mark.skipif(bool(ELSEWHERE), reason="other records need not show every component")
def test_every_component_is_met_by_numbers() -> None:
    used = Counter(term.name for i in BOOK.compared for term in plan_of(BOOK.records[i]).terms)
    wanted = {c.name for (kind, _), c in COMPONENTS.items() if kind == "policy_loss"} - {
        "cpgd",
        "loglinear-ppo",
        "k3-huber",
        "binary-kl",
        "importance-sequence",
    }  # of which there is no record
    assert set(used) >= wanted


@pytest.mark.parametrize("framework", sorted({BOOK.records[i]["framework"] for i in BOOK.compared}))
def test_a_loss_that_meets_a_framework_says_so(framework: str) -> None:
    """Of ROLL's aggregations the loss of a token is not its own."""
    mine = [BOOK.records[i] for i in BOOK.compared if BOOK.records[i]["framework"] == framework]
    met = {(t.kind, t.name) for r in mine if r["mode"] != "agg_loss_roll" for t in plan_of(r).terms if t.kind != "kl"}
    assert {name for kind, name in met if framework.split("(")[0] not in COMPONENTS[kind, name].compat} == set()
