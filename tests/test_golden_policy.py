"""Every policy loss against the numbers that other frameworks' own code gave: loss, loss of each token, gradient and metrics."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossary import aggregators, algorithms, estimators
from lossary.batch import Batch
from lossary.registry import Component, Level, Mean, Totals, component_of

GOLDEN = json.loads((Path(__file__).parent / "golden" / "policy.json").read_text())
RECORDS: Mapping[str, Any] = {r["id"]: r for r in GOLDEN["records"]}
COMPONENTS: Mapping[tuple[str, str], Component] = {
    (c.kind.name, c.name): c
    for package in (algorithms, estimators, aggregators)
    for c in map(component_of, package.lossary_components())
    if c is not None
}
REASONS = ("framework-bug", "counts-padding", "reads-hole", "split-dependent", "unclamped")

DELIBERATE: Mapping[str, tuple[str, str]] = {
    "agg_loss_roll/roll/extreme_6x8/token-mean": ("framework-bug", "ROLL's token-mean adds up masked positions too; ours has none."),
    "agg_loss_roll/roll/tokadv_3x5/token-mean": ("framework-bug", "ROLL's token-mean adds up masked positions too; ours has none."),
    "nemo_clipped_pg/kl_k3/nemo-rl/extreme_6x8/": (
        "framework-bug",
        "NeMo's clamp of the KL estimate also takes the pull from the token that drifted most; ours caps the value and keeps the pull.",
    ),
    "liger_grpo/luspo_token/": (
        "counts-padding",
        "Liger's luspo averages over the padded width and counts padding as tokens; ours sums the tokens.",
    ),
}
"""Records that differ on purpose, by id or beginning of an id: ``(reason, what differs)``."""


# ── how a record of a framework reads in our words ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Term:
    """One component with its hyperparameters and its coefficient."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "policy_loss"
    coef: float = 1.0


@dataclass(frozen=True)
class Plan:
    """What a record says, as a recipe would."""

    terms: tuple[Term, ...]
    aggregation: str
    params: Mapping[str, Any] = field(default_factory=dict)
    empty: str = "drop"
    """``count``: sequences without a token stand in the denominator."""
    totals: Mapping[str, float] = field(default_factory=dict)
    """Denominators that the framework leaves to its caller."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Columns that the framework takes from elsewhere."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Theirs by ours."""
    tokens: str = "loss"
    """What its loss of each token holds: the ``loss``, the ``weighted`` one, or something ``else``."""


def clip(h: Mapping[str, Any], low: str, high: str, c: str | None = None, bound: float | None = None) -> Term:
    """Return the clipped surrogate, with the lower bound's number for a missing upper one."""
    params = {"clip_ratio_low": h[low], "clip_ratio_high": h[low] if h.get(high) is None else h[high], "log_ratio_bound": bound}
    if c is None or h.get(c) is None:
        return Term("ppo-clip", params)
    return Term("dual-clip", {**params, "clip_ratio_c": h[c]})


def sequence_level(term: Term, name: str = "gspo") -> Term:
    """Return the same clip on the ratio of whole sequences."""
    return Term(name, term.params)


def verl(r: Mapping[str, Any]) -> Plan:
    h, width = r["hyperparameters"], len(GOLDEN["cases"][r["case"]]["log_prob"][0])
    params = {"loss_scale_factor": width} if r["agg"] == "seq-mean-token-sum-norm" else {}
    metrics = {"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl", "pg_clipfrac_lower": "actor/pg_clipfrac_lower"}
    if r["mode"] == "kl_estimator":
        kind, plus, _ = h["kl_penalty"].partition("+")
        bounds = {"log_ratio_bound": 20.0, "cap": 10.0} if kind == "k3" else {"log_ratio_bound": None}
        term = Term(kind, {**bounds, "gradient": "straight-through" if plus else "own"}, "kl")
        return Plan((term,), r["agg"], columns={"ref_log_prob": "teacher_log_prob"})
    if r["mode"] == "gpg":
        return Plan((Term("reinforce"),), r["agg"])
    if r["mode"] == "gspo":
        return Plan((sequence_level(clip(h, "clip_ratio_low", "clip_ratio_high", bound=10.0), "gspo-token"),), r["agg"], metrics=metrics)
    if r["mode"] == "bypass":  # settings of the actor's own defaults; the sampler's policy stands in for the old one
        return Plan((Term("dual-clip"),), r["agg"], columns={"old_log_prob": "rollout_log_prob"}, metrics=metrics)
    if h["clip_ratio_c"] == 1e30:
        return Plan((clip(h, "clip_ratio_low", "clip_ratio_high", bound=20.0),), r["agg"], params, metrics=metrics)
    return Plan((clip(h, "clip_ratio_low", "clip_ratio_high", "clip_ratio_c", 20.0),), r["agg"], params, metrics=metrics)


def trl_like(r: Mapping[str, Any], low: str, high: str) -> Plan:
    """TRL, Liger and Unsloth: ``loss_type`` is the aggregation, and all rows count."""
    h = r["hyperparameters"]
    term = clip(h, low, high)
    if (delta := h.get("delta")) is not None:  # min(r, delta) also bounds a positive advantage where delta is the smaller one
        high_, low_ = term.params["clip_ratio_high"], term.params["clip_ratio_low"]
        bounds = {"clip_ratio_low": low_, "clip_ratio_high": min(high_, delta - 1), "clip_ratio_c": max(delta, 1 + high_)}
        term = Term("dual-clip", {**bounds, "log_ratio_bound": None})
    if h.get("importance_sampling_level") == "sequence":
        term = sequence_level(term)
    terms = [term]
    if h.get("beta"):
        terms.append(Term("k3", {"log_ratio_bound": None}, "kl", h["beta"]))
    width = len(GOLDEN["cases"][r["case"]]["log_prob"][0])
    params = {"loss_scale_factor": h.get("maxlen", h.get("max_completion_length", width))} if h["loss_type"] == "dr_grpo" else {}
    aggregation = {
        "grpo": "seq-mean-token-mean",
        "dr_grpo": "seq-mean-token-sum-norm",
        "luspo": "seq-mean-token-sum",
        "bnpo": "token-mean",
        "dapo": "token-mean",
    }[h["loss_type"]]
    return Plan(tuple(terms), aggregation, params, empty="count")


def trl(r: Mapping[str, Any]) -> Plan:
    plan = trl_like(r, "epsilon", "epsilon_high")
    token_level = r["hyperparameters"].get("importance_sampling_level") != "sequence" and "delta" not in r["hyperparameters"]
    return Plan(**{**vars(plan), "metrics": {"pg_clipfrac": "clip_ratio/region_mean"} if token_level else {}})


def liger(r: Mapping[str, Any]) -> Plan:
    return trl_like(r, "epsilon_low", "epsilon_high")


def skyrl(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    aggregation, params = {
        "none(sum)": ("token-sum", {}),
        "token_mean": ("token-mean", {}),
        "sequence_mean": ("seq-mean-token-mean", {}),
        "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", {"loss_scale_factor": 10}),
        "prompt_mean": ("group-mean", {}),
    }[r["agg"]]
    if r["mode"] == "cross_entropy":
        return Plan((Term("sft", {}, "auxiliary_loss"),), aggregation)
    if r["mode"] == "importance_sampling":
        return Plan((Term("importance-sampling", {"log_ratio_bound": None}),), aggregation)
    term = clip(h, "eps_clip_low", "eps_clip_high", "clip_ratio_c", bound=20.0)
    if r["mode"] == "gspo":
        term = sequence_level(clip(h, "eps_clip_low", "eps_clip_high", bound=10.0), "gspo-token")
    return Plan((term,), aggregation, params, empty="count", metrics={"pg_clipfrac": "clip_ratio"}, tokens="weighted")


def slime(r: Mapping[str, Any]) -> Plan:
    term = clip(r["hyperparameters"], "eps_clip", "eps_clip_high", "eps_clip_c")
    if r["mode"] == "gspo":
        return Plan((sequence_level(term),), "seq-mean-token-mean", totals={"sequences": 1}, metrics={"pg_clipfrac": "clipfrac"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clipfrac"})


def areal(r: Mapping[str, Any]) -> Plan:
    term = clip(r["hyperparameters"], "eps_clip", "eps_clip_higher", "c_clip")
    if r["mode"] == "gspo":  # it also replaces the advantages by their mean over the row
        return Plan((sequence_level(term),), "token-mean", columns={"advantages": "mean of the row"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clip_mask"})


def nemo(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    aggregation = r["agg"].partition(" ")[0]
    if h.get("disable_ppo_ratio"):
        return Plan((Term("reinforce"),), aggregation)
    term = clip(h, "ratio_clip_min", "ratio_clip_max", "ratio_clip_c")
    if h.get("sequence_level_importance_ratios"):
        return Plan((sequence_level(term),), aggregation)
    if (beta := h.get("reference_policy_kl_penalty")) is None:
        return Plan((term,), aggregation)
    # the KL is multiplied by a ratio that is 1 and has a gradient, which turns the gradient of k3 into that of k2
    kl = Term("k3", {"log_ratio_bound": 20.0, "cap": 10.0, "gradient": "straight-through"}, "kl", beta)
    return Plan((term, kl), aggregation, tokens="else")


def openrlhf(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    sequence = h.get("policy_loss_type") == "gspo"
    term = clip(h, "clip_eps_low", "clip_eps_high", "dual_clip", None if sequence else 20.0)
    metrics = {} if sequence else {"pg_clipfrac": "clip_ratio", "ppo_kl": "ppo_kl"}
    return Plan((sequence_level(term) if sequence else term,), r["agg"], metrics=metrics)


def trinity(r: Mapping[str, Any]) -> Plan:
    if r["mode"] == "importance_sampling":
        return Plan((Term("importance-sampling"),), r["agg"])
    term = clip(r["hyperparameters"], "clip_range_low", "clip_range_high", bound=10.0)
    metrics = {"pg_clipfrac": "pg_clipfrac", "ppo_kl": "ppo_kl"}
    return Plan((sequence_level(term, "gspo-token"),), r["agg"], empty="count", metrics=metrics, tokens="else")


def roll(r: Mapping[str, Any]) -> Plan:
    h, width = r["hyperparameters"], len(GOLDEN["cases"][r["case"]]["log_prob"][0])
    if r["mode"] == "tis_pg":
        params = {"objective": "score", "imp_ratio_cap": h["tis_upper_bound"], "log_ratio_bound": None}
        return Plan((Term("importance-sampling", params),), r["agg"])
    if r["mode"] == "agg_loss_roll":
        norm = r["agg"] == "seq-mean-token-sum-norm"  # divides by the width only, not by the sequences
        params = {"loss_scale_factor": width} if norm else {}
        return Plan((Term("importance-sampling"),), r["agg"], params, totals={"sequences": 1} if norm else {})
    params = {"clip_ratio_low": h["pg_clip_low"], "clip_ratio_high": h["pg_clip_high"], "clip_ratio_c": 1 + 2 * h["pg_clip"]}
    return Plan((Term("dual-clip", {**params, "log_ratio_bound": None}),), r["agg"])


PLANS: Mapping[str, Callable[[Mapping[str, Any]], Plan]] = {
    "verl": verl, "trl": trl, "liger-kernel": liger, "unsloth-zoo": liger, "skyrl": skyrl, "slime": slime, "areal": areal,
    "nemo-rl": nemo, "openrlhf": openrlhf, "trinity-rft": trinity, "roll": roll,
}  # fmt: skip


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def batch_of(r: Mapping[str, Any], plan: Plan) -> tuple[Batch, Tensor]:
    """Return the batch of a record's case and its padded log-probabilities, which want a gradient."""
    case = {k: torch.tensor(v, dtype=torch.float64) for k, v in GOLDEN["cases"][r["case"]].items()}
    mask = case.pop("response_mask")
    named = {n: case[n] for n in ("log_prob", "old_log_prob", "ref_log_prob", "entropy")}
    advantages = case["advantages"]
    for ours, theirs in plan.columns.items():
        if ours != "advantages":
            named[ours] = case[theirs]
        else:
            advantages = ((advantages * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(mask)
    leaf = named["log_prob"].clone().requires_grad_()
    groups = torch.arange(mask.shape[0]).clamp(max=2) // 2  # the prompts' borders that skyrl's records were made with
    return Batch.from_padded(mask, **{**named, "log_prob": leaf}, advantages=advantages, group_ids=groups), leaf


def totals_of(batch: Batch, plan: Plan) -> Totals:
    lengths = batch.sequences.lengths
    counts = {
        "tokens": float(lengths.sum()),
        "sequences": float((lengths > 0).sum()) if plan.empty == "drop" else float(len(batch)),
        "groups": float(len(set(batch.groups))),
        **plan.totals,
    }
    t = {k: torch.tensor(v, dtype=torch.float64) for k, v in counts.items()}
    return Totals(t["tokens"], t["sequences"], t["groups"], t["tokens"])


def call(kind: str, name: str, params: Mapping[str, Any], batch: Batch, totals: Totals) -> Any:
    """Call a component as the pipeline does: columns by name, hyperparameters checked."""
    c = COMPONENTS[kind, name]
    special = {"sequences": batch.sequences, "totals": totals}
    columns = [special[i.name] if i.name in special else batch.column(i.name, Level.TOKEN) for i in c.inputs]
    return c.function(*columns, **c.params.model_validate(params).model_dump())


@dataclass(frozen=True)
class Ours:
    """The result in the record's own form."""

    loss: Tensor
    per_token: Tensor
    grad: Tensor
    metrics: Mapping[str, Tensor]


def run(r: Mapping[str, Any], plan: Plan) -> Ours:
    batch, leaf = batch_of(r, plan)
    totals = totals_of(batch, plan)
    weight = call("aggregation", plan.aggregation, plan.params, batch, totals)
    assert weight.dtype == torch.float64
    total, metrics = torch.zeros_like(weight), {}
    for term in plan.terms:
        out = call(term.kind, term.name, term.params, batch, totals)
        loss, report = out if isinstance(out, tuple) else (out, {})
        total = total + term.coef * loss
        metrics.update({name: mean_of(x) for name, x in report.items()})
    (weight * total).sum().backward()
    assert leaf.grad is not None
    shown = batch.unpack((weight * total if plan.tokens == "weighted" else total).detach(), float("nan"))
    return Ours((weight * total).sum().detach(), shown, leaf.grad, metrics)


def mean_of(measured: Mean) -> Tensor:
    x = measured.x.double()
    return (x if measured.where is None else x[measured.where]).mean()


def tensor(x: Any) -> Tensor:
    if isinstance(x, list):
        return torch.stack([tensor(y) for y in x])
    return torch.tensor(float("nan") if x is None else float(x), dtype=torch.float64)


def differences(r: Mapping[str, Any]) -> list[str]:
    """Return what of a record ours does not meet."""
    plan = PLANS[r["framework"]](r)
    ours = run(r, plan)
    rtol = 2e-5 if "float32" in r["dtype"] else 1e-6
    found = []

    def compare(what: str, got: Tensor, wanted: Tensor, rtol: float = rtol) -> None:
        try:
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-9, equal_nan=True)
        except AssertionError as error:
            found.append(f"{what}: {got.tolist()} for {wanted.tolist()} ({' '.join(str(error).split())[:160]})")

    compare("loss", ours.loss, tensor(r["loss"]))
    if r["grad_log_prob"] is not None:
        compare("grad_log_prob", ours.grad, tensor(r["grad_log_prob"]))
    if r["loss_per_token"] is not None and plan.tokens != "else":
        theirs = tensor(r["loss_per_token"])
        seen = ~theirs.isnan()
        compare("loss_per_token", ours.per_token[seen], theirs[seen])
    mask = torch.tensor(GOLDEN["cases"][r["case"]]["response_mask"]) > 0
    for mine, theirs in plan.metrics.items():
        if mine in ours.metrics:
            value = tensor(r["metrics"][theirs])
            compare(mine, ours.metrics[mine], value[mask].mean() if value.dim() else value)
    return found


def deliberate(identity: str) -> str | None:
    return next((key for key in DELIBERATE if identity.startswith(key)), None)


COMPARED = [i for i in RECORDS if deliberate(i) is None]


@pytest.mark.parametrize("identity", COMPARED)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(RECORDS[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE)
def test_what_differs_on_purpose_does_differ(key: str) -> None:
    reason, sentence = DELIBERATE[key]
    assert reason in REASONS
    assert sentence.endswith(".")
    rows = [i for i in RECORDS if deliberate(i) == key]
    assert rows
    assert all(differences(RECORDS[i]) for i in rows)


def test_nothing_is_dropped_and_little_differs() -> None:
    on_purpose = [i for i in RECORDS if deliberate(i) is not None]
    assert len(RECORDS) == len(GOLDEN["records"]) == len(COMPARED) + len(on_purpose)
    assert len(on_purpose) < 0.1 * len(RECORDS)


def test_every_component_is_met_by_numbers() -> None:
    used = Counter(term.name for i in COMPARED for term in PLANS[RECORDS[i]["framework"]](RECORDS[i]).terms)
    assert set(used) == {"ppo-clip", "dual-clip", "gspo", "gspo-token", "reinforce", "importance-sampling", "sft", "k1", "k2", "k3", "abs"}
