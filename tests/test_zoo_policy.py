"""The zoo of policy losses against the numbers that other frameworks' own code gave: loss and gradient, record by record."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import lossary
from lossary.batch import Batch
from lossary.registry import Level, Totals

GOLDEN = json.loads((Path(__file__).parent / "golden" / "zoo_policy.json").read_text())
RECORDS: Mapping[str, Any] = {r["id"]: r for r in GOLDEN["records"]}
BOOK = {(c.kind.name, c.name): c for c in lossary.catalog() if c.distribution == "lossary"}
REASONS = ("framework-bug", "counts-padding", "reads-hole", "split-dependent", "unclamped")

DELIBERATE: Mapping[str, tuple[str, str]] = {
    "sapo/trinity(detached gate!)/": ("framework-bug", "Trinity detaches the gate, which turns its falling weight into a rising one."),
    "gmpo/eps0.4/trl/extreme_6x8/": ("counts-padding", "A row without any token has the loss -A in TRL's GMPO; ours has none."),
}
"""Records that differ on purpose, by beginning of an id: ``(reason, what differs)``."""

ELSEWHERE: Mapping[str, str] = {
    "gmpo/token_tis/verl/": "a correction against the mismatch between sampler and trainer, which is another component's",
    "gmpo/entropy0.5/trl/": "a selection of tokens by entropy inside the mean",
    "decoupled_ppo/decoupled_seq_k3_max/areal/": "a rejection by the largest k3 of a sequence, which is a correction's",
}
"""Records that are not made by a policy loss alone, by beginning of an id: what makes them."""


@dataclass(frozen=True)
class Plan:
    """What a record says, in our words."""

    use: str
    params: Mapping[str, Any]
    aggregation: str
    totals: Mapping[str, float] = field(default_factory=dict)
    columns: Mapping[str, Callable[[Mapping[str, Tensor]], Tensor]] = field(default_factory=dict)
    """Columns that the framework takes from elsewhere."""
    terms: tuple[tuple[str, str, Mapping[str, Any], float], ...] = ()
    """Further terms: ``(kind, name, params, coefficient)``."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    empty: str = "drop"
    scale: float = 1.0


VERL = {"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl"}
SKYRL = {
    "none(sum)": "token-sum",
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "token-mean": "token-mean",
    "seq-mean-token-mean": "seq-mean-token-mean",
}


def column(name: str) -> Callable[[Mapping[str, Tensor]], Tensor]:
    return lambda case: case[name]


def row_mean(case: Mapping[str, Tensor]) -> Tensor:
    """Areal replaces the advantages by their mean over the row."""
    mask = case["response_mask"]
    return ((case["advantages"] * mask).sum(1) / mask.sum(1).clamp(min=1))[:, None].expand_as(mask)


def of_trl(r: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's loss types are aggregations, and all rows count."""
    mean = r["hyperparameters"].get("loss_type") in ("grpo", "sapo")
    summed = r["hyperparameters"].get("loss_type") == "luspo"
    aggregation = "seq-mean-token-mean" if mean else "seq-mean-token-sum" if summed else "token-mean"
    return {"aggregation": aggregation, "empty": "count"}


def two_sided_delta(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    params = {"clip_ratio_low": h["epsilon"], "clip_ratio_high": h["epsilon_high"], "delta": h["delta"], "log_ratio_bound": None}
    return Plan("two-sided-delta", params, **of_trl(r))


def luspo(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    params = {"clip_ratio_low": h["epsilon"], "clip_ratio_high": h.get("epsilon_high", h["epsilon"]), "log_ratio_bound": None}
    return Plan("luspo" if h["importance_sampling_level"] == "sequence" else "ppo-clip", params, **of_trl(r))


def gmpo(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    if r["framework"] == "verl":
        params = {"clip_ratio_low": h["clip_ratio_low"], "clip_ratio_high": h["clip_ratio_high"], "log_ratio_bound": None}
        return Plan("gmpo", params, "seq-mean-token-mean", empty="count", metrics={"ppo_kl": "actor/ppo_kl"})
    terms = (("kl", "k3", {"log_ratio_bound": None}, h["beta"]),) if "beta" in h else ()
    params = {"clip_ratio_low": h["epsilon"], "clip_ratio_high": h["epsilon"], "log_ratio_bound": None}
    return Plan("gmpo", params, "seq-mean-token-mean", empty="count", terms=terms)


def aspo(r: Mapping[str, Any]) -> Plan:
    return Plan("aspo", r["hyperparameters"], r["agg"])


def dppo(r: Mapping[str, Any]) -> Plan:
    h, use = r["hyperparameters"], r["mode"].replace("_", "-")
    if r["framework"] == "verl":
        metrics = {k: v for k, v in VERL.items() if k == "ppo_kl" or r["case"] != "extreme_6x8"}  # theirs counts A = 0 as negative
        return Plan(use, {"clip_ratio_c": 3.0, **h}, r["agg"], metrics=metrics)
    deltas = {"clip_ratio_low": h["dppo"]["delta_low"], "clip_ratio_high": h["dppo"]["delta_high"]}
    columns = {"old_log_prob": column("rollout_log_prob")} if "rollout_anchor" in r["id"] else {}
    return Plan(use, {**deltas, "clip_ratio_c": None, "objective": "ratio"}, SKYRL[r["agg"]], columns=columns)


def sapo(r: Mapping[str, Any]) -> Plan:
    h, bound = r["hyperparameters"], 20.0 if r["framework"] in ("verl", "skyrl") else None
    params = {k: h[k] for k in ("tau_pos", "tau_neg", "importance_sampling_level") if k in h}
    columns = {"advantages": row_mean} if h.get("importance_sampling_level") == "sequence" else {}
    rest = (
        of_trl(r)
        if r["framework"] == "trl"
        else {"aggregation": SKYRL[r["agg"]], "empty": "count" if r["framework"] == "skyrl" else "drop"}
    )
    return Plan("sapo", {**params, "log_ratio_bound": bound}, columns=columns, **rest)


def sppo(r: Mapping[str, Any]) -> Plan:
    return Plan("sppo", r["hyperparameters"], r["agg"])


def rec(r: Mapping[str, Any]) -> Plan:
    return Plan("rec", {"clip_mode": "none", "log_ratio_bound": None, **r["hyperparameters"]}, r["agg"], empty="count")


def cispo(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    if r["framework"] == "verl":
        metrics = {"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl"}
        return Plan("cispo", h, r["agg"], metrics=metrics)
    if r["framework"] == "trl":
        return Plan("cispo", {"imp_ratio_cap": h["epsilon_high"], "log_ratio_bound": None}, **of_trl(r))
    if r["framework"] == "skyrl":
        columns = {"old_log_prob": column("rollout_log_prob")} if "cispo" in h else {}
        return Plan("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 4.0}, SKYRL[r["agg"]], columns=columns, empty="count")
    if r["framework"] == "slime":
        return Plan(
            "cispo", {"clip_ratio_low": h["eps_clip"], "clip_ratio_high": h["eps_clip_high"], "log_ratio_bound": None}, "token-mean"
        )
    if r["framework"] == "roll":
        bounds = {"clip_ratio_low": h["cispo_epsilon_low"], "clip_ratio_high": h["cispo_epsilon_high"]}
        return Plan("cispo", {**bounds, "log_ratio_bound": None}, r["agg"])
    return Plan("cispo", {"clip_ratio_low": 1.0, "clip_ratio_high": 0.28, "mask_clipped": h.get("enable_mask_clip", False)}, r["agg"])


def rollout_is(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    return Plan("rollout-is", {"clip_ratio_low": h["eps_clip_low"], "clip_ratio_high": h["eps_clip_high"]}, SKYRL[r["agg"]])


def tis_pg(r: Mapping[str, Any]) -> Plan:
    return Plan("tis", {**r["hyperparameters"], "log_ratio_bound": None}, r["agg"])


def topr(r: Mapping[str, Any]) -> Plan:
    positive = "reward" if r["framework"] == "roll" else "advantage"
    return Plan("topr", {"importance_sampling_level": "token", "positive_by": positive, "log_ratio_bound": None}, r["agg"])


def dro(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    beta = h["policy_loss"]["dro_beta"] if r["mode"] == "dro" else h["kimi15_tau"]
    return Plan("dro", {"dro_beta": beta}, r["agg"], metrics={"ppo_kl": "actor/ppo_kl"} if r["mode"] == "dro" else {})


def opmd(r: Mapping[str, Any]) -> Plan:
    return Plan("opmd", r["hyperparameters"], r["agg"])


def vespo(r: Mapping[str, Any]) -> Plan:
    return Plan("vespo", {"rollout_is_threshold": 3.0} if "vllm_is" in r["hyperparameters"] else {}, **of_trl(r))


def decoupled_ppo(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]["rejection_sampling"]
    params = {
        "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "behav_imp_weight_cap": h["upper"], "behav_imp_weight_floor": h["lower"] or 0.0,
        "action": h["action"], "importance_sampling_level": h["level"], "log_ratio_bound": None,
    }  # fmt: skip
    return Plan("decoupled-ppo", params, "token-mean")


def prime_rl(r: Mapping[str, Any]) -> Plan:
    use = {"prime_rl_default": "prime-rl", "prime_rl_ipo": "prime-ipo"}[r["mode"]]
    return Plan(use, {**r["hyperparameters"], "log_ratio_bound": None}, "token-mean")


PLANS: Mapping[str, Callable[[Mapping[str, Any]], Plan]] = {
    "two_sided_delta": two_sided_delta, "luspo": luspo, "gmpo": gmpo, "aspo": aspo, "dppo_tv": dppo, "dppo_kl": dppo, "sapo": sapo,
    "spo_sppo": sppo, "rec": rec, "cispo": cispo, "rollout_is(icepop)": rollout_is, "tis_pg": tis_pg, "topr": topr, "dro": dro, "kimi15": dro,
    "opmd": opmd, "vespo": vespo, "decoupled_ppo": decoupled_ppo, "prime_rl_default": prime_rl, "prime_rl_ipo": prime_rl,
}  # fmt: skip


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def batch_of(r: Mapping[str, Any], plan: Plan) -> tuple[Batch, Tensor]:
    """Return the batch of a record's case and its padded log-probabilities, which want a gradient."""
    case = {k: torch.tensor(v, dtype=torch.float64) for k, v in GOLDEN["cases"][r["case"]].items()}
    case["grad"] = tensor(r["grad_log_prob"]) if r["grad_log_prob"] is not None else torch.zeros_like(case["log_prob"])
    mask = case["response_mask"]
    names = ("old_log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob", "entropy", "advantages")
    named = {n: case[n] for n in names} | {n: f(case) for n, f in plan.columns.items()}
    rewards = named.pop("rewards", case.get("score", torch.zeros(len(mask), dtype=torch.float64)))
    groups = case["uid"].long() if "uid" in case else torch.arange(len(mask)) // 2
    leaf = case["log_prob"].clone().requires_grad_()
    return Batch.from_padded(mask, **named, log_prob=leaf, group_ids=groups, rewards=rewards), leaf


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
    c = BOOK[kind, name]
    special = {"sequences": batch.sequences, "totals": totals}

    def get(name: str, level: Level | None, optional: bool) -> Any:
        if name in special:
            return special[name]
        return None if optional and name not in batch else batch.column(name, level)

    columns = [get(i.name, i.level, i.optional) for i in c.inputs]
    return c.function(*columns, **c.params.model_validate(params).model_dump())


def run(r: Mapping[str, Any], plan: Plan) -> tuple[Tensor, Tensor, Mapping[str, Tensor]]:
    """Return loss, gradient and metrics."""
    batch, leaf = batch_of(r, plan)
    totals = totals_of(batch, plan)
    weight = call("aggregation", plan.aggregation, {}, batch, totals)
    total, metrics = torch.zeros((), dtype=torch.float64), {}
    for kind, name, params, coef in (("policy_loss", plan.use, plan.params, 1.0), *plan.terms):
        out = call(kind, name, params, batch, totals)
        loss, report = out if isinstance(out, tuple) else (out, {})
        level, w = BOOK[kind, name].returns, weight
        if level is not Level.TOKEN:
            w = batch.sequences.sum(weight)
            w = batch.sequences.group_sum(w) if level is Level.GROUP else w
            loss = torch.where(w != 0, loss, 0.0)
        total = total + plan.scale * coef * (w * loss).sum()
        metrics.update({key: x.x.double().mean() if x.where is None else x.x[x.where].double().mean() for key, x in report.items()})
    total.backward()
    return total.detach(), leaf.grad, metrics


def tensor(x: Any) -> Tensor:
    if isinstance(x, list):
        return torch.stack([tensor(y) for y in x])
    return torch.tensor(float("nan") if x is None else float(x), dtype=torch.float64)


def differences(r: Mapping[str, Any]) -> list[str]:
    """Return what of a record ours does not meet."""
    plan = PLANS[r["mode"]](r)
    loss, grad, metrics = run(r, plan)
    rtol, found = 2e-5 if "float32" in r["dtype"] else 1e-6, []

    def compare(what: str, got: Tensor, wanted: Tensor) -> None:
        try:
            torch.testing.assert_close(got, wanted, rtol=rtol, atol=1e-9, equal_nan=True)
        except AssertionError:
            found.append(f"{what}: {got.tolist()} for {wanted.tolist()}")

    compare("loss", loss, tensor(r["loss"]))
    if r["grad_log_prob"] is not None:
        compare("grad_log_prob", grad, tensor(r["grad_log_prob"]))
    for mine, theirs in plan.metrics.items():
        compare(mine, metrics[mine], tensor(r["metrics"][theirs]))
    return found


def starting(table: Mapping[str, Any], identity: str) -> str | None:
    return next((key for key in table if identity.startswith(key)), None)


COMPARED = [i for i, r in RECORDS.items() if r["mode"] in PLANS and starting({**DELIBERATE, **ELSEWHERE}, i) is None]


@pytest.mark.parametrize("identity", COMPARED)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(RECORDS[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE)
def test_what_differs_on_purpose_does_differ(key: str) -> None:
    reason, sentence = DELIBERATE[key]
    assert reason in REASONS
    assert sentence.endswith(".")
    rows = [i for i in RECORDS if starting(DELIBERATE, i) == key]
    assert rows
    assert all(differences(RECORDS[i]) for i in rows)
