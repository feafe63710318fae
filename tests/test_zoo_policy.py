"""The zoo of policy losses against the numbers that other frameworks' own code gave: loss and gradient, record by record."""

import json
import math
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

_ROUNDED = "TRL compares entropies with a threshold rounded to float32 and so drops the token that is the threshold; ours keeps it."

DELIBERATE: Mapping[str, tuple[str, str]] = {
    "sapo/trinity(detached gate!)/": ("framework-bug", "Trinity detaches the gate, which turns its falling weight into a rising one."),
    "gmpo/eps0.4/trl/extreme_6x8/": ("counts-padding", "A row without any token has the loss -A in TRL's GMPO; ours has none."),
    "gvpo/verl-recipe/extreme_6x8/": (
        "framework-bug",
        "A row without any token makes the recipe's loss 0/0; ours leaves it out of its group.",
    ),
    "real/ms-swift/extreme_6x8/": (
        "counts-padding",
        "A row without any token stands for a bad answer in ms-swift; in ours it is no answer.",
    ),
    "flowrl/verl-recipe/extreme_6x8/": (
        "counts-padding",
        "A row without any token has the loss log_z squared in the recipe; ours has none.",
    ),
    "a2po/trl/extreme_6x8/": ("counts-padding", "A row without any token has a loss in TRL's A2PO; ours has none."),
    "high_entropy_mask/rho0.2/trl/ragged_4x6/": ("framework-bug", _ROUNDED),
    "high_entropy_mask/rho0.5/trl/extreme_6x8/": ("framework-bug", _ROUNDED),
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
    mask: str = ""
    """The record holds a mask of kept tokens; the measure in which ours says which it dropped."""


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


def clip_cov(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    cov = h["policy_loss"] if r["framework"] == "verl" else {k.replace("clip_ratio", "clip_cov_ratio"): v for k, v in h["clip_cov"].items()}
    bounds = {k: h.get(k, 0.2) for k in ("clip_ratio_low", "clip_ratio_high")}
    columns: dict[str, Callable[[Mapping[str, Tensor]], Tensor]] = {}
    if "recipe_defaults" in r["id"]:  # the token that theirs drew has the gradient 0
        columns["noise"] = lambda case: (case["grad"] != 0).double()
    if r["agg"] == "token_mean":  # theirs divides the advantages by the number of tokens, covariances included
        columns["advantages"] = lambda case: case["advantages"] / case["response_mask"].sum()
    aggregation = "token-sum" if r["framework"] == "skyrl" else r["agg"]
    metrics = {"ppo_kl": "actor/ppo_kl"} if r["framework"] == "verl" else {}
    return Plan("clip-cov", {**cov, **bounds, "log_ratio_bound": None}, aggregation, columns=columns, metrics=metrics)


def kl_cov(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    if r["framework"] == "verl":
        return Plan("kl-cov", {**h["policy_loss"], "log_ratio_bound": None}, r["agg"], metrics={"ppo_kl_abs": "actor/ppo_kl"})
    columns = {"advantages": lambda case: case["advantages"] / case["response_mask"].sum()} if r["agg"] == "token_mean" else {}
    params = {"kl_cov_ratio": h["kl_cov"]["kl_cov_frac"], "ppo_kl_coef": h["kl_cov"]["ppo_kl_coef"], "log_ratio_bound": None}
    return Plan("kl-cov", params, "token-sum", columns=columns)


def fipo(r: Mapping[str, Any]) -> Plan:
    h = dict(r["hyperparameters"])
    return Plan(
        "fipo", {"clip_ratio_low": h.pop("epsilon"), "clip_ratio_high": h.pop("epsilon_high"), **h, "log_ratio_bound": None}, "token-mean"
    )


def real(r: Mapping[str, Any]) -> Plan:
    return Plan("real", {"real_tau": r["hyperparameters"]["real_tau"]}, "group-mean")


def gvpo(r: Mapping[str, Any]) -> Plan:
    return Plan("gvpo", {"beta": r["hyperparameters"]["beta"]}, "seq-mean-token-mean", totals={"sequences": r["hyperparameters"]["n"]})


def flowrl(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    columns = {"log_z": lambda case: torch.full_like(case["response_mask"][:, 0], h["log_z"])}
    params = {"flowrl_beta_coef": h["flowrl_beta_coef"], "log_ratio_bound": None}
    return Plan("flowrl", params, "seq-mean-token-mean", columns=columns, empty="count")


def segment_ratio(r: Mapping[str, Any]) -> Plan:
    def turns(case: Mapping[str, Tensor]) -> Tensor:
        return (case["response_mask"] == 0).cumsum(1)

    bounds = {"clip_ratio_low": r["hyperparameters"]["pg_clip"], "clip_ratio_high": r["hyperparameters"]["pg_clip"]}
    return Plan("segment-ratio", {**bounds, "log_ratio_bound": None}, r["agg"], columns={"turns": turns})


def high_entropy(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    params = {"clip_ratio_low": h["epsilon"], "clip_ratio_high": h.get("epsilon_high", h["epsilon"])}
    return Plan("high-entropy", {**params, "top_entropy_quantile": h["top_entropy_quantile"], "log_ratio_bound": None}, **of_trl(r))


def opsm(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    anchor = "rollout_log_prob" if "vs_rollout" in r["id"] else "old_log_prob"
    columns = {"rollout_log_prob": column(anchor)}
    if r["framework"] == "trl":
        params = {"opsm_delta": h["off_policy_mask_threshold"], "clip_ratio_low": h["epsilon"], "clip_ratio_high": h["epsilon"]}
        return Plan("opsm", {**params, "log_ratio_bound": None}, columns=columns, **of_trl(r))
    return Plan("opsm", {"opsm_delta": h["opsm_delta"]}, "token-sum", columns=columns, mask="opsm_clipfrac")


def m2po(r: Mapping[str, Any]) -> Plan:
    return Plan("m2po", r["hyperparameters"], "token-sum", mask="m2_dropfrac")


def a2po(r: Mapping[str, Any]) -> Plan:
    return Plan("a2po", r["hyperparameters"], "seq-mean-token-mean", empty="count")


def opd(r: Mapping[str, Any]) -> Plan:
    h = r["hyperparameters"]
    if r["framework"] == "verl":
        return Plan("opd", {"loss_max_clamp": h["loss_max_clamp"]}, r["agg"], metrics=VERL)
    if h["rl_loss_weight"] == 0:
        columns = {"advantages": lambda case: case["teacher_log_prob"] - case["log_prob"]}
        return Plan("importance-sampling", {"log_ratio_bound": None}, r["agg"], columns=columns, scale=h["distill_loss_weight"])
    terms = (("kl", "k1", {"log_ratio_bound": None}, h["distill_loss_weight"]),)
    bounds = {"clip_ratio_low": h["eps_clip"], "clip_ratio_high": h["eps_clip"], "log_ratio_bound": None}
    return Plan("ppo-clip", bounds, r["agg"], columns={"ref_log_prob": column("teacher_log_prob")}, terms=terms)


def sdpo(r: Mapping[str, Any]) -> Plan:
    return Plan("sdpo", {"is_clip": r["hyperparameters"]["is_clip"]}, "token-mean")


def iw_opd(r: Mapping[str, Any]) -> Plan:
    sampler = column("log_prob") if "onpolicy" in r["id"] else column("old_log_prob")
    return Plan("iw-opd", r["hyperparameters"], "token-mean", columns={"rollout_log_prob": sampler})


def prime_ref_kl(r: Mapping[str, Any]) -> Plan:
    return Plan("prime-ref-kl", {**r["hyperparameters"], "log_ratio_bound": None}, "token-mean")


def bapo(r: Mapping[str, Any]) -> Plan:
    params = {k: v for k, v in r["hyperparameters"].items() if k != "eps"}
    theirs = {**VERL, "pg_clipfrac_lower": "pg_clipfrac_lower", "bapo/clip_low": "clip_low", "bapo/clip_high": "clip_high"}
    return Plan("bapo", params, r["agg"], metrics={k: v.removeprefix("actor/") for k, v in theirs.items()})


PLANS: Mapping[str, Callable[[Mapping[str, Any]], Plan]] = {
    "two_sided_delta": two_sided_delta, "luspo": luspo, "gmpo": gmpo, "aspo": aspo, "dppo_tv": dppo, "dppo_kl": dppo, "sapo": sapo,
    "spo_sppo": sppo, "rec": rec, "cispo": cispo, "rollout_is(icepop)": rollout_is, "tis_pg": tis_pg, "topr": topr, "dro": dro, "kimi15": dro,
    "opmd": opmd, "vespo": vespo, "decoupled_ppo": decoupled_ppo, "prime_rl_default": prime_rl, "prime_rl_ipo": prime_rl,
    "clip_cov": clip_cov, "kl_cov": kl_cov, "fipo": fipo, "real": real, "gvpo": gvpo, "flowrl": flowrl, "segment_ratio": segment_ratio,
    "high_entropy_mask": high_entropy, "off_policy_seq_mask": opsm, "m2po_mask": m2po, "a2po": a2po, "opd_pg_k1": opd, "opd_kdrl": opd,
    "sdpo_sampled_token": sdpo, "iw_opd": iw_opd, "prime_rl_ref_kl": prime_ref_kl, "bapo": bapo,
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
    """Return loss, gradient and what the metrics are means of."""
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
        metrics.update({key: x.x.double() if x.where is None else x.x[x.where].double() for key, x in report.items()})
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

    if plan.mask:
        theirs = tensor(r["loss_per_token"])
        compare("mask", 1 - metrics[plan.mask], theirs[~theirs.isnan()])
        return found
    compare("loss", loss, tensor(r["loss"]))
    if r["grad_log_prob"] is not None:
        compare("grad_log_prob", grad, tensor(r["grad_log_prob"]))
    for mine, theirs in plan.metrics.items():
        compare(mine, metrics[mine].mean(), tensor(r["metrics"][theirs]))
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


def test_nothing_is_dropped_and_little_differs() -> None:
    assert {r["mode"] for r in RECORDS.values()} == set(PLANS)
    on_purpose = [i for i in RECORDS if starting(DELIBERATE, i)]
    elsewhere = [i for i in RECORDS if starting(ELSEWHERE, i)]
    assert len(RECORDS) == len(COMPARED) + len(on_purpose) + len(elsewhere)
    assert len(on_purpose) + len(elsewhere) < 0.1 * len(RECORDS)


# ── what no framework's numbers show ─────────────────────────────────────────────────────────────────────────────────


def little(**more: Tensor) -> Batch:
    """Two groups of two sequences; the policy has moved."""
    g = torch.Generator().manual_seed(3)
    lengths = torch.tensor([3, 1, 4, 2])
    names = ("old_log_prob", "log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob")
    columns = {n: -2 * torch.rand(10, generator=g, dtype=torch.float64) for n in names}
    columns |= {
        "advantages": torch.randn(10, generator=g, dtype=torch.float64),
        "entropy": torch.rand(10, generator=g, dtype=torch.float64),
    }
    columns |= {"rewards": torch.tensor([1.0, -1.0, 0.0, 2.0], dtype=torch.float64), "log_z": torch.zeros(4, dtype=torch.float64)}
    columns |= {"turns": torch.arange(10) // 2, "group_ids": torch.tensor([0, 0, 1, 1])}
    return Batch.from_packed(lengths, **{**columns, **more})


def gradient(use: str, batch: Batch, log_prob: Tensor, **params: Any) -> tuple[Tensor, Tensor]:
    """Return the loss and the gradient of the plain sum of a loss."""
    leaf = log_prob.detach().clone().requires_grad_()
    out = call("policy_loss", use, params, batch.with_columns(Level.TOKEN, log_prob=leaf), None)
    loss = out[0] if isinstance(out, tuple) else out
    loss.sum().backward()
    return loss.detach(), leaf.grad


POLICY = [c for (kind, _), c in BOOK.items() if kind == "policy_loss"]


@pytest.mark.parametrize("component", [c for c in POLICY if "on-policy-gradient" in c.claims], ids=lambda c: c.name)
def test_on_policy_the_gradient_is_the_advantage(component: Any) -> None:
    batch = little()
    _, grad = gradient(component.name, batch, batch["old_log_prob"])
    torch.testing.assert_close(grad, -batch["advantages"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("component", [c for c in POLICY if "rollout_log_prob" in c.columns], ids=lambda c: c.name)
def test_a_token_that_the_sampler_did_not_score_weighs_one(component: Any) -> None:
    """Its NaN reaches neither its own gradient nor any other's, and it counts as if sampler and trainer had agreed."""
    base = little()
    hole = base["rollout_log_prob"].clone()
    hole[4] = float("nan")
    agreed = base["rollout_log_prob"].clone()
    agreed[4] = base["old_log_prob" if "old_log_prob" in component.columns else "log_prob"][4]
    params = {"rollout_is_threshold": 3.0} if component.name == "vespo" else {}
    found = [gradient(component.name, little(rollout_log_prob=x), base["log_prob"], **params) for x in (hole, agreed)]
    assert found[0][1].isfinite().all()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_sequence_level_topr_tapers_whole_bad_sequences() -> None:
    batch = little()
    _, grad = gradient("topr", batch, batch["log_prob"], positive_by="reward")
    ratio = batch.sequences.sum(batch["log_prob"] - batch["old_log_prob"]).exp()
    weight = torch.where(batch["rewards"] > 0, 1.0, ratio.clamp(max=1))
    torch.testing.assert_close(grad, -batch["advantages"] * batch.sequences.spread(weight))


def test_dro_of_sequences_has_the_cross_terms() -> None:
    batch = little()
    loss, grad = gradient("dro", batch, batch["log_prob"], importance_sampling_level="sequence", dro_beta=0.3)
    whole = batch.sequences.sum(batch["log_prob"] - batch["old_log_prob"])
    torch.testing.assert_close(loss.sum(), (-batch["advantages"] * batch["log_prob"]).sum() + 0.15 * whole.square().sum())
    torch.testing.assert_close(grad, -batch["advantages"] + 0.3 * batch.sequences.spread(whole))


def test_segments_end_where_sequences_end() -> None:
    """One turn number throughout: the segments are the sequences."""
    batch = little(turns=torch.zeros(10, dtype=torch.long))
    bounds = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2}
    for ours, theirs in zip(
        gradient("segment-ratio", batch, batch["log_prob"], **bounds), gradient("gspo", batch, batch["log_prob"], **bounds), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_the_optimal_value_comes_from_the_group_or_the_recipe() -> None:
    batch = little()
    loss, _ = gradient("a2po", batch, batch["ref_log_prob"])  # no distance from the reference: what is left is the reward's
    r = batch["rewards"].view(2, 2)
    best = 0.5 * ((r / 0.5).exp().mean(1).log())
    torch.testing.assert_close(loss, (r - best[:, None]).square().view(-1))
    loss, _ = gradient("a2po", batch, batch["ref_log_prob"], v_star=0.25)
    torch.testing.assert_close(loss, (batch["rewards"] - 0.25).square())


def test_clip_cov_draws_by_noise_and_otherwise_takes_the_largest() -> None:
    batch = little()
    band = {"clip_cov_lb": -100.0, "clip_cov_ub": 100.0, "clip_cov_ratio": 0.2, "clip_ratio_high": 500.0}
    noise = torch.linspace(1, 0, 10, dtype=torch.float64)
    _, drawn = gradient("clip-cov", batch.with_columns(Level.TOKEN, noise=noise), batch["log_prob"], **band)
    assert (drawn == 0).nonzero().flatten().tolist() == [8, 9]
    _, largest = gradient("clip-cov", batch, batch["log_prob"], **band)
    a, p = batch["advantages"], batch["log_prob"]
    cov = (a - a.mean()) * (p - p.mean())
    assert sorted((largest == 0).nonzero().flatten().tolist()) == sorted(cov.topk(2).indices.tolist())


def test_cpgd_clips_the_log_ratio_and_bounds_the_drift() -> None:
    batch = little()
    d, a = batch["log_prob"] - batch["old_log_prob"], batch["advantages"]
    loss, grad = gradient("cpgd", batch, batch["log_prob"], drift_coef=0.5)
    silent = torch.where(a >= 0, d > torch.tensor(1.2).log(), d < torch.tensor(0.8).log())
    torch.testing.assert_close(grad, torch.where(silent, 0.0, -a) + 0.5 * (d.exp() - 1).clamp(max=1.0))
    clipped = torch.where(a >= 0, d.clamp(max=math.log(1.2)), d.clamp(min=math.log(0.8)))
    torch.testing.assert_close(loss, -a * clipped + 0.5 * (d.exp() - 1 - d))


@pytest.mark.parametrize(("use", "params"), [("topr", {"positive_by": "reward"}), ("vespo", {"rollout_is_threshold": 2.0})])
def test_a_column_that_a_setting_needs_is_asked_for_by_name(use: str, params: Mapping[str, Any]) -> None:
    columns = {n: torch.zeros(2) for n in ("log_prob", "old_log_prob", "advantages")}
    with pytest.raises(lossary.ColumnError, match=f"'{use}' with .* needs the column"):
        call("policy_loss", use, params, Batch.from_packed(torch.tensor([2]), **columns), None)
