"""How a policy record of a framework reads in our words: components, hyperparameters, aggregation. No record is looked up by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from golden.records import POLICY, Record, Unmapped


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
    """Columns that the framework takes from elsewhere; as ``advantages`` also one of the words of ``advantages_of``."""
    cap: float | None = None
    """The bound of an advantage that is measured against a teacher."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Theirs by ours."""
    tokens: str = "loss"
    """What its loss of each token holds: the ``loss``, the ``weighted`` one, or something ``else``; without terms the corrections'
    ``weight`` or what they ``keep``."""
    corrections: tuple[Term, ...] = ()
    denominator: str = "original"
    """``kept``: tokens that a correction drops count no more."""
    sees: Mapping[str, str] = field(default_factory=dict)
    """Columns that the corrections take from elsewhere."""


def width(r: Record) -> int:
    return len(POLICY["cases"][r["case"]]["log_prob"][0])


def clip(h: Mapping[str, Any], low: str, high: str, c: str | None = None, bound: float | None = None) -> Term:
    """Return the clipped surrogate, with the lower bound's number for a missing upper one."""
    params = {"clip_ratio_low": h[low], "clip_ratio_high": h[low] if h.get(high) is None else h[high], "log_ratio_bound": bound}
    if c is None or h.get(c) is None:
        return Term("ppo-clip", params)
    return Term("dual-clip", {**params, "clip_ratio_c": h[c]})


def sequence_level(term: Term, name: str = "gspo") -> Term:
    """Return the same clip on the ratio of whole sequences."""
    return Term(name, term.params)


def cispo(cap: float, bound: float | None = None) -> Term:
    """Return CISPO without its lower bound: the capped ratio as a weight."""
    return Term("importance-sampling", {"objective": "score", "imp_ratio_cap": cap, "log_ratio_bound": bound})


def near_old(terms: tuple[Term, ...], strength: float, aggregation: str, **more: Any) -> Plan:
    """Return a loss that is held near the old policy by ``strength * d ** 2 / 2``."""
    pull = Term("k2", {"log_ratio_bound": None}, "kl", strength)
    return Plan((*terms, pull), aggregation, columns={"ref_log_prob": "old_log_prob"}, **more)


# ── one function per framework ───────────────────────────────────────────────────────────────────────────────────────


def verl(r: Record) -> Plan:
    h, mode = r["hyperparameters"], r["mode"]
    params = {"loss_scale_factor": width(r)} if r["agg"] == "seq-mean-token-sum-norm" else {}
    metrics = {"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl", "pg_clipfrac_lower": "actor/pg_clipfrac_lower"}
    if mode == "ppo_clip_dual":
        never = h["clip_ratio_c"] >= 1e30
        term = clip(h, "clip_ratio_low", "clip_ratio_high", None if never else "clip_ratio_c", 20.0)
        return Plan((term,), r["agg"], params, metrics=metrics)
    if mode == "kl_estimator":
        kind, plus, _ = h["kl_penalty"].partition("+")
        bounds = {"log_ratio_bound": 20.0, "cap": 10.0} if kind == "k3" else {"log_ratio_bound": None}
        term = Term(kind, {**bounds, "gradient": "straight-through" if plus else "own"}, "kl")
        return Plan((term,), r["agg"], columns={"ref_log_prob": "teacher_log_prob"})
    if mode == "gpg":
        return Plan((Term("reinforce"),), r["agg"], params)
    if mode == "gspo":
        term = clip(h, "clip_ratio_low", "clip_ratio_high", bound=10.0)
        return Plan((sequence_level(term, "gspo-token"),), r["agg"], params, metrics=metrics)
    if mode == "cispo":
        return Plan((cispo(1 + h["clip_ratio_high"], 20.0),), r["agg"], params, metrics={"ppo_kl": "actor/ppo_kl"})
    if mode == "dro":
        return near_old((Term("reinforce"),), h["policy_loss"]["dro_beta"], r["agg"], params=params)
    if mode == "bypass" and h["loss_type"] == "ppo_clip":  # the actor's own defaults; the sampler's policy stands in for the old one
        return Plan((Term("dual-clip"),), r["agg"], params, columns={"old_log_prob": "rollout_log_prob"}, metrics=metrics)
    if mode == "opd_pg_k1" and h["policy_loss_mode"] == "vanilla":
        term = Term("dual-clip", {"clip_ratio_low": h["clip_ratio"], "clip_ratio_high": h["clip_ratio"], "clip_ratio_c": h["clip_ratio_c"]})
        return Plan((term,), r["agg"], columns={"advantages": "teacher over log_prob"}, cap=h["loss_max_clamp"])
    raise Unmapped(r)


def trl_like(r: Record, low: str, high: str) -> Plan:
    """TRL, Liger and Unsloth: ``loss_type`` is the aggregation, and all rows count."""
    h = r["hyperparameters"]
    term = clip(h, low, high)
    if (delta := h.get("delta")) is not None:  # min(r, delta) also bounds a positive advantage where delta is the smaller one
        high_, low_ = term.params["clip_ratio_high"], term.params["clip_ratio_low"]
        bounds = {"clip_ratio_low": low_, "clip_ratio_high": min(high_, delta - 1), "clip_ratio_c": max(delta, 1 + high_)}
        term = Term("dual-clip", {**bounds, "log_ratio_bound": None})
    if h.get("importance_sampling_level") == "sequence":
        term = sequence_level(term)
    if h["loss_type"] == "cispo":
        term = cispo(h[high])
    terms = [term]
    if h.get("beta"):
        terms.append(Term("k3", {"log_ratio_bound": None}, "kl", h["beta"]))
    params = {"loss_scale_factor": h.get("maxlen", h.get("max_completion_length", width(r)))} if h["loss_type"] == "dr_grpo" else {}
    aggregation = {
        "grpo": "seq-mean-token-mean",
        "dr_grpo": "seq-mean-token-sum-norm",
        "luspo": "seq-mean-token-sum",
        "bnpo": "token-mean",
        "dapo": "token-mean",
        "cispo": "token-mean",
    }[h["loss_type"]]
    columns = {"advantages": "first column"} if any("column 0" in name for name in r["inputs"]) else {}
    return Plan(tuple(terms), aggregation, params, empty="count", columns=columns)


def trl(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "iw_opd" and h["iw_opd_gamma"] == 0:
        sampler = "old_log_prob" if any("old_log_prob" in name for name in r["inputs"]) else "log_prob"
        return Plan((Term("reinforce"),), r["agg"], columns={"advantages": f"teacher over {sampler}"})
    if r["mode"] == "sdpo_sampled_token" and h["distillation_alpha"] == 1:
        term = Term("reinforce") if h["is_clip"] is None else cispo(h["is_clip"], 20.0)
        return Plan((term,), "token-mean", columns={"advantages": "teacher over log_prob"})
    plan = trl_like(r, "epsilon", "epsilon_high")
    token_level = h.get("importance_sampling_level") != "sequence" and "delta" not in h
    return replace(plan, metrics={"pg_clipfrac": "clip_ratio/region_mean"} if token_level else {})


def liger(r: Record) -> Plan:
    return trl_like(r, "epsilon_low", "epsilon_high")


def skyrl(r: Record) -> Plan:
    h = r["hyperparameters"]
    aggregation, params = {
        "none(sum)": ("token-sum", {}),
        "token_mean": ("token-mean", {}),
        "sequence_mean": ("seq-mean-token-mean", {}),
        "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", {"loss_scale_factor": 10}),
        "prompt_mean": ("group-mean", {}),
    }[r["agg"]]
    plan = Plan((), aggregation, params, empty="count", metrics={"pg_clipfrac": "clip_ratio"}, tokens="weighted")
    if r["mode"] == "cross_entropy":
        return replace(plan, terms=(Term("sft", {}, "auxiliary_loss"),))
    if r["mode"] == "importance_sampling":
        return replace(plan, terms=(Term("importance-sampling", {"log_ratio_bound": None}),))
    if r["mode"] == "cispo":
        settings = {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 4.0, "cispo_anchor": "old", **h.get("cispo", {})}
        columns = {"old_log_prob": "rollout_log_prob"} if settings["cispo_anchor"] == "rollout" else {}
        return replace(plan, terms=(cispo(1 + settings["cispo_eps_clip_high"], 20.0),), columns=columns)
    if r["mode"] == "ppo_clip_dual":
        return replace(plan, terms=(clip(h, "eps_clip_low", "eps_clip_high", "clip_ratio_c", bound=20.0),))
    if r["mode"] == "gspo":
        return replace(plan, terms=(sequence_level(clip(h, "eps_clip_low", "eps_clip_high", bound=10.0), "gspo-token"),))
    raise Unmapped(r)


def slime(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "cispo":
        return Plan((cispo(1 + h["eps_clip_high"]),), "token-mean")
    term = clip(h, "eps_clip", "eps_clip_high", "eps_clip_c")
    if r["mode"] == "gspo":
        return Plan((sequence_level(term),), "seq-mean-token-mean", totals={"sequences": 1}, metrics={"pg_clipfrac": "clipfrac"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clipfrac"})


def areal(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "opd_kdrl" and not h["rl_loss_weight"]:  # distillation alone
        term = Term("importance-sampling", {"log_ratio_bound": None}, coef=h["distill_loss_weight"])
        return Plan((term,), r["agg"], columns={"advantages": "teacher over log_prob"}, tokens="else")
    term = clip(h, "eps_clip", "eps_clip_higher", "c_clip")
    if r["mode"] == "opd_kdrl":
        terms = replace(term, coef=h["rl_loss_weight"]), Term("k1", {"log_ratio_bound": None}, "kl", h["distill_loss_weight"])
        return Plan(terms, r["agg"], columns={"ref_log_prob": "teacher_log_prob"}, tokens="else")
    if r["mode"] == "gspo":  # it also replaces the advantages by their mean over the row
        return Plan((sequence_level(term),), "token-mean", columns={"advantages": "mean of the row"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clip_mask"})


def nemo(r: Record) -> Plan:
    h = r["hyperparameters"]
    aggregation = r["agg"].partition(" ")[0]
    if h.get("disable_ppo_ratio"):
        return Plan((Term("reinforce"),), aggregation)
    if h.get("use_cispo"):
        return Plan((cispo(1 + h["ratio_clip_max"]),), aggregation)
    columns = {"old_log_prob": "log_prob"} if h.get("force_on_policy_ratio") else {}
    term = clip(h, "ratio_clip_min", "ratio_clip_max", "ratio_clip_c")
    if h.get("sequence_level_importance_ratios"):
        return Plan((sequence_level(term),), aggregation, columns=columns)
    if (beta := h.get("reference_policy_kl_penalty")) is None:
        return Plan((term,), aggregation, columns=columns)
    # the KL is multiplied by a ratio that is 1 and has a gradient, which turns the gradient of k3 into that of k2
    kl = Term("k3", {"log_ratio_bound": 20.0, "cap": 10.0, "gradient": "straight-through"}, "kl", beta)
    return Plan((term, kl), aggregation, columns=columns, tokens="else")


def openrlhf(r: Record) -> Plan:
    h = r["hyperparameters"]
    sequence = h.get("policy_loss_type") == "gspo"
    term = clip(h, "clip_eps_low", "clip_eps_high", "dual_clip", None if sequence else 20.0)
    metrics = {} if sequence else {"pg_clipfrac": "clip_ratio", "ppo_kl": "ppo_kl"}
    return Plan((sequence_level(term) if sequence else term,), r["agg"], metrics=metrics)


def trinity(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "importance_sampling":
        return Plan((Term("importance-sampling"),), r["agg"])
    if r["mode"] == "cispo":
        return Plan((cispo(1 + h.get("clip_range_high", 0.28), 20.0),), r["agg"], tokens="else")
    if r["mode"] == "opmd":
        return Plan((Term("reinforce", coef=1 / (1 + h.get("tau", 1.0))),), r["agg"], tokens="else")
    if r["mode"] == "rec" and h.get("regularizer") == "k2":
        return near_old((Term("reinforce"),), 2 * h["regularizer_coef"], r["agg"], tokens="else")
    if r["mode"] == "rec" and h.get("regularizer") == "forward-kl":
        return Plan((Term("reinforce"), Term("sft", {}, "auxiliary_loss", h["regularizer_coef"])), r["agg"], tokens="else")
    if r["mode"] != "gspo":
        raise Unmapped(r)
    term = clip(h, "clip_range_low", "clip_range_high", bound=10.0)
    metrics = {"pg_clipfrac": "pg_clipfrac", "ppo_kl": "ppo_kl"}
    return Plan((sequence_level(term, "gspo-token"),), r["agg"], empty="count", metrics=metrics, tokens="else")


def roll(r: Record) -> Plan:
    h, agg = r["hyperparameters"], r["agg"]
    norm = agg == "seq-mean-token-sum-norm"  # divides by the width only, not by the sequences
    plan = Plan((), agg, {"loss_scale_factor": width(r)} if norm else {}, totals={"sequences": 1} if norm else {})
    if r["mode"] == "tis_pg":
        params = {"objective": "score", "imp_ratio_cap": h["tis_upper_bound"], "log_ratio_bound": None}
        return replace(plan, terms=(Term("importance-sampling", params),))
    if r["mode"] == "agg_loss_roll":
        return replace(plan, terms=(Term("importance-sampling"),))
    if r["mode"] == "kimi15":
        return near_old((Term("reinforce"),), h["kimi15_tau"], agg, params=plan.params, totals=plan.totals)
    if r["mode"] != "ppo_clip_dual":
        raise Unmapped(r)
    params = {"clip_ratio_low": h["pg_clip_low"], "clip_ratio_high": h["pg_clip_high"], "clip_ratio_c": 1 + 2 * h["pg_clip"]}
    return replace(plan, terms=(Term("dual-clip", {**params, "log_ratio_bound": None}),))


PLANS: Mapping[str, Callable[[Record], Plan]] = {
    "verl": verl, "trl": trl, "liger-kernel": liger, "unsloth-zoo": liger, "skyrl": skyrl, "slime": slime, "areal": areal,
    "nemo-rl": nemo, "openrlhf": openrlhf, "trinity-rft": trinity, "roll": roll,
}  # fmt: skip


def plan_of(r: Record) -> Plan:
    if r["framework"] not in PLANS:
        raise Unmapped(r)
    return PLANS[r["framework"]](r)
