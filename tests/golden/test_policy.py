"""Every policy loss against the numbers that other frameworks' own code gave: loss, loss of each token, gradient and metrics."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from golden.policy_corrections import bare, chained, plan_of
from golden.policy_plans import Plan
from golden.records import ELSEWHERE, POLICY, Book, Key, Record, call, difference, leaves, totals_of
from torch import Tensor

from lossary.batch import Batch
from lossary.registry import Mean

DELIBERATE: Mapping[Key, tuple[str, str]] = {
    ("roll", "mode=agg_loss_roll & agg=token-mean"): (
        "framework-bug",
        "ROLL's token-mean adds up masked positions too; ours has none.",
    ),
    ("nemo-rl", "reference_policy_kl_penalty=* & data=k3-above-10 & !use_on_policy_kl_approximation=True"): (
        "framework-bug",
        "NeMo's clamp of the KL estimate also takes the pull from the token that drifted most; ours caps the value and keeps the pull.",
    ),
    ("liger-kernel", "loss_type=luspo & !importance_sampling_level=sequence"): (
        "counts-padding",
        "Liger's luspo averages over the padded width and counts padding as tokens; ours sums the tokens.",
    ),
    ("verl", "mode=offpolicy_metrics & data=empty-row"): (
        "counts-padding",
        "verl counts a row without any token as one of perplexity 1; ours as none.",
    ),
}
"""Records that differ on purpose: ``(reason, what differs)``. A word is one that ``words`` yields."""

PENDING: Mapping[Key, str] = {
    # losses
    ("*", "*=sapo"): "policy_loss/sapo",
    ("*", "*=vespo"): "policy_loss/vespo",
    ("*", "mode=gmpo"): "policy_loss/gmpo",
    ("*", "mode=dppo_*"): "policy_loss/dppo",
    ("*", "mode=clip_cov"): "policy_loss/clip-cov",
    ("*", "mode=kl_cov"): "policy_loss/kl-cov",
    ("verl", "mode=cispo & clip_ratio_low=0.*"): "policy_loss/cispo: a lower bound of the weight",
    ("roll", "mode=cispo"): "policy_loss/cispo: a lower bound of the weight",
    ("trinity-rft", "mode=cispo & enable_mask_clip=True"): "policy_loss/cispo: clipped tokens are dropped",
    ("*", "mode=topr"): "policy_loss/topr",
    ("*", "mode=bapo"): "policy_loss/bapo",
    ("*", "mode=aspo"): "policy_loss/aspo",
    ("*", "mode=fipo"): "policy_loss/fipo",
    ("*", "mode=real"): "policy_loss/real",
    ("*", "mode=gvpo"): "policy_loss/gvpo",
    ("*", "mode=flowrl"): "policy_loss/flowrl",
    ("*", "mode=a2po"): "policy_loss/a2po",
    ("*", "mode=spo_sppo"): "policy_loss/sppo",
    ("trinity-rft", "mode=rec & clip_mode=*"): "policy_loss/rec: tokens out of range are dropped",
    ("trinity-rft", "mode=rec & weight=advantage"): "policy_loss/rec: the advantage as a weight",
    ("prime-rl", "mode=prime_rl_*"): "policy_loss/prime-rl: tokens are dropped by their change of probability",
    ("trl", "mode=rloo_seq_ppo"): "policy_loss/ppo-clip on the product of a sequence's ratios",
    ("roll", "mode=segment_ratio"): "policy_loss/gspo by segments of the mask",
    ("trl", "mode=iw_opd & !iw_opd_gamma=0.0"): "policy_loss/iw-opd: weights by the distance so far",
    ("*", "mode=sdar"): "auxiliary_loss/sdar",
    ("*", "mode=high_entropy_mask"): "token selection by entropy",
    # a ratio on the KL
    ("trl", "mode=kl_loss_term & !use_bias_correction_kl=False"): "kl: weighted by the importance ratio",
    ("liger-kernel", "use_bias_correction_kl=True"): "kl: weighted by the importance ratio",
    ("nemo-rl", "use_on_policy_kl_approximation=True"): "kl: weighted by the importance ratio",
}
"""Records that no plan of this book reads yet, by the component concerned.

Those of losses that are registered by now are compared in ``tests/test_zoo_policy.py`` until their plans move here.
"""


def words(r: Record) -> Iterator[str]:
    yield from (f"{name}={r[name]}" for name in ("mode", "variant", "agg"))
    yield from (f"input={name}" for name in r["inputs"])
    yield from leaves(r["hyperparameters"], "")
    case = {k: torch.tensor(POLICY["cases"][r["case"]][k], dtype=torch.float64) for k in ("log_prob", "ref_log_prob", "response_mask")}
    x = (case["ref_log_prob"] - case["log_prob"])[case["response_mask"] > 0]
    if (torch.expm1(x) - x).max() > 10:
        yield "data=k3-above-10"
    if not (case["response_mask"] > 0).any(1).all():
        yield "data=empty-row"


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def batch_of(r: Record, plan: Plan) -> tuple[Batch, Tensor]:
    """Return the batch of a record's case and its padded log-probabilities, which want a gradient."""
    case = {k: torch.tensor(v, dtype=torch.float64) for k, v in POLICY["cases"][r["case"]].items()}
    mask = case.pop("response_mask")
    named = {n: case[n] for n in ("log_prob", "old_log_prob", "rollout_log_prob", "ref_log_prob", "entropy", "advantages")}
    for ours, theirs in plan.columns.items():
        named[ours] = case[theirs] if theirs in case else advantages_of(theirs, case, mask, plan)
    leaf = named["log_prob"].clone().requires_grad_()
    groups = torch.arange(mask.shape[0]).clamp(max=2) // 2  # the prompts' borders that skyrl's records were made with
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
    metrics: Mapping[str, Tensor]


def run(r: Record, plan: Plan) -> Ours:
    whole, leaf = batch_of(r, plan)
    correction, keep = chained(whole, plan)
    batch = whole.select(keep)
    counted = batch if plan.denominator == "kept" else whole
    totals = totals_of(counted, plan.empty, plan.totals)
    weight = call("aggregation", plan.aggregation, plan.params, counted, totals)
    assert weight.dtype == torch.float64
    weight, correction = weight if counted is batch else weight[keep], correction[keep]
    total, metrics = torch.zeros_like(weight), {}
    for term in plan.terms:
        out = call(term.kind, term.name, term.params, batch, totals)
        loss, report = out if isinstance(out, tuple) else (out, {})
        total = total + term.coef * (correction * loss if term.kind == "policy_loss" else loss)
        metrics.update({name: mean_of(x) for name, x in report.items()})
    (weight * total).sum().backward()
    assert leaf.grad is not None
    shown = torch.full((len(keep),), float("nan"), dtype=torch.float64)  # of a dropped token frameworks say various things
    shown[keep] = (weight * total if plan.tokens == "weighted" else total).detach()
    return Ours((weight * total).sum().detach(), whole.unpack(shown, float("nan")), leaf.grad, metrics)


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
        if mine in ours.metrics:
            value = tensor(r["metrics"][theirs])
            found += difference(mine, ours.metrics[mine], value[mask].mean() if value.dim() else value, *tolerance)
    return found


BOOK = Book("golden_policy.json", POLICY["records"], words, differences, DELIBERATE, PENDING)


# ── the tests ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("identity", BOOK.compared)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(BOOK.records[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE, ids=" ".join)
def test_what_differs_on_purpose_does_differ(key: Key) -> None:
    BOOK.check_deliberate(key)


@pytest.mark.parametrize("key", PENDING, ids=" ".join)
def test_what_is_pending_is_there_to_wait(key: Key) -> None:
    BOOK.check_pending(key)


def test_nothing_is_dropped_and_little_differs() -> None:
    BOOK.check_sum()


@pytest.mark.skipif(bool(ELSEWHERE), reason="other records need not show every component")
def test_every_component_is_met_by_numbers() -> None:
    used = Counter(term.name for i in BOOK.compared for term in plan_of(BOOK.records[i]).terms)
    wanted = {"ppo-clip", "dual-clip", "gspo", "gspo-token", "reinforce", "importance-sampling", "sft", "k1", "k2", "k3", "abs"}
    assert set(used) >= wanted
