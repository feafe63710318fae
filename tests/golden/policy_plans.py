"""How a policy record of a framework reads in our words: components, hyperparameters, aggregation. No record is looked up by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from golden.records import POLICY, Record, Unmapped
from torch import Tensor


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
    made: Mapping[str, Callable[[Record], Tensor]] = field(default_factory=dict)
    """Columns that follow from what the record says."""
    corrections: tuple[Term, ...] = ()
    """What weighs and selects tokens before the first term."""
    denominator: str = "original"
    """``kept``: tokens that a correction drops count no more."""
    sees: Mapping[str, str] = field(default_factory=dict)
    """Columns that the corrections take from elsewhere."""
    groups: str = "borders"
    """``uid``: the prompts that the case names."""
    cap: float | None = None
    """The bound of an advantage that is measured against a teacher."""
    metrics: Mapping[str, str] = field(default_factory=dict)
    """Theirs by ours."""
    tokens: str = "loss"
    """What its loss of each token holds: the ``loss``, the ``weighted`` one, or something ``else``; without terms the corrections'
    ``weight`` or what they ``keep``."""

    def using(self, term: Term, **columns: str) -> "Plan":
        """Return the same plan around another loss, without its metrics."""
        return replace(self, terms=(term,), columns={**self.columns, **columns}, metrics={})


def case_of(r: Record) -> tuple[Mapping[str, Tensor], Tensor]:
    """Return the columns of a record's case and its mask."""
    case = {k: torch.tensor(v, dtype=torch.float64) for k, v in POLICY["cases"][r["case"]].items()}
    return case, case.pop("response_mask")


def valid(r: Record, name: str) -> Tensor:
    """Return a column of the sampled tokens alone."""
    case, mask = case_of(r)
    return case[name][mask > 0]


def width(r: Record) -> int:
    return len(POLICY["cases"][r["case"]]["log_prob"][0])


def clip(h: Mapping[str, Any], low: str, high: str, c: str | None = None, bound: float | None = None) -> Term:
    """Return the clipped surrogate, with the lower bound's number for a missing upper one."""
    below = h.get(low, 0.2)  # every framework's default
    params = {"clip_ratio_low": below, "clip_ratio_high": below if h.get(high) is None else h[high], "log_ratio_bound": bound}
    if c is None or h.get(c) is None:
        return Term("ppo-clip", params)
    return Term("dual-clip", {**params, "clip_ratio_c": h[c]})


def sequence_level(term: Term, name: str = "gspo") -> Term:
    """Return the same clip on the ratio of whole sequences."""
    return Term(name, term.params)


def columns_of(r: Record) -> Mapping[str, str]:
    """Return the columns that a record's inputs say come from elsewhere."""
    return {"advantages": "first column"} if any("column 0" in name for name in r["inputs"]) else {}


SKYRL = {
    "none(sum)": ("token-sum", {}),
    "token_mean": ("token-mean", {}),
    "sequence_mean": ("seq-mean-token-mean", {}),
    "seq_mean_token_sum_norm": ("seq-mean-token-sum-norm", {"loss_scale_factor": 10}),
    "prompt_mean": ("group-mean", {}),
}
"""SkyRL's reductions: aggregation and hyperparameters."""


def weighted_k3(term: Term) -> tuple[str, Mapping[str, Any]]:
    """Return k3 weighted by the ratio of the level that the policy's term has."""
    name = "importance-sequence" if term.name == "gspo" else "k3-importance"
    return name, {"log_ratio_bound": None, "importance_cap": None}


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
    if mode == "bypass" and h["loss_type"] == "ppo_clip":  # the actor's own defaults; the sampler's policy stands in for the old one
        return Plan((Term("dual-clip"),), r["agg"], params, columns={"old_log_prob": "rollout_log_prob"}, metrics=metrics)
    raise Unmapped(r)


def trl_like(r: Record, low: str, high: str) -> Plan:
    """TRL, Liger and Unsloth: ``loss_type`` is the aggregation, and all rows count."""
    h = r["hyperparameters"]
    term = clip(h, low, high)
    kind, taus = h["loss_type"], {k: h[k] for k in ("tau_pos", "tau_neg") if h.get(k) is not None}
    if kind == "grpo":
        term = Term("grpo", term.params)
    if h.get("delta") is not None:
        term = Term("two-sided-delta", {**term.params, "delta": h["delta"]})
    if h.get("importance_sampling_level") == "sequence":
        term = sequence_level(term, "luspo" if kind == "luspo" else "gspo")
    if kind == "cispo":
        term = Term("cispo", {"imp_ratio_cap": h[high], "log_ratio_bound": None})
    if kind == "sapo":
        term = Term("sapo", {**taus, "log_ratio_bound": None})
    if kind == "vespo":
        if (how := h.get("vllm_is", {})) and (how["mode"] != "token_truncate" or how.get("clip_min") is not None):
            raise Unmapped(r)
        term = Term("vespo", {"rollout_is_threshold": how["clip_max"]} if how else {})
    terms = [term]
    if h.get("beta"):
        corrected = h.get("use_bias_correction_kl", r["framework"] == "trl")  # TRL's default, and not Liger's
        terms.append(Term(*(weighted_k3(term) if corrected else ("k3", {"log_ratio_bound": None})), "kl", h["beta"]))
    params = {"loss_scale_factor": h.get("maxlen", h.get("max_completion_length", width(r)))} if h["loss_type"] == "dr_grpo" else {}
    aggregation = {
        "grpo": "seq-mean-token-mean",
        "sapo": "seq-mean-token-mean",
        "dr_grpo": "seq-mean-token-sum-norm",
        "luspo": "seq-mean-token-sum",
        "bnpo": "token-mean",
        "dapo": "token-mean",
        "cispo": "token-mean",
        "vespo": "token-mean",
    }[kind]
    return Plan(tuple(terms), aggregation, params, empty="count", columns=columns_of(r))


def trl(r: Record) -> Plan:
    h = r["hyperparameters"]
    plan = trl_like(r, "epsilon", "epsilon_high")
    token_level = h.get("importance_sampling_level") != "sequence" and "delta" not in h and h["loss_type"] not in ("cispo", "sapo", "vespo")
    return replace(plan, metrics={"pg_clipfrac": "clip_ratio/region_mean"} if token_level else {})


def liger(r: Record) -> Plan:
    return trl_like(r, "epsilon_low", "epsilon_high")


def skyrl(r: Record) -> Plan:
    h = r["hyperparameters"]
    aggregation, params = SKYRL[r["agg"]]
    plan = Plan((), aggregation, params, empty="count", metrics={"pg_clipfrac": "clip_ratio"}, tokens="weighted")
    if r["mode"] == "cross_entropy":
        return replace(plan, terms=(Term("sft", {}, "auxiliary_loss"),))
    if r["mode"] == "importance_sampling":
        return replace(plan, terms=(Term("importance-sampling", {"log_ratio_bound": None}),))
    if r["mode"] == "ppo_clip_dual":
        return replace(plan, terms=(clip(h, "eps_clip_low", "eps_clip_high", "clip_ratio_c", bound=20.0),))
    if r["mode"] == "gspo":
        return replace(plan, terms=(sequence_level(clip(h, "eps_clip_low", "eps_clip_high", bound=10.0), "gspo-token"),))
    raise Unmapped(r)


def slime(r: Record) -> Plan:
    h = r["hyperparameters"]
    term = clip(h, "eps_clip", "eps_clip_high", "eps_clip_c")
    if r["mode"] == "gspo":
        return Plan((sequence_level(term),), "seq-mean-token-mean", totals={"sequences": 1}, metrics={"pg_clipfrac": "clipfrac"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clipfrac"})


def areal(r: Record) -> Plan:
    h = r["hyperparameters"]
    term = clip(h, "eps_clip", "eps_clip_higher", "c_clip")
    if r["mode"] == "gspo":  # it also replaces the advantages by their mean over the row
        return Plan((sequence_level(term),), "token-mean", columns={"advantages": "mean of the row"})
    return Plan((term,), "token-mean", metrics={"pg_clipfrac": "clip_mask"})


def nemo(r: Record) -> Plan:
    h = r["hyperparameters"]
    aggregation = r["agg"].partition(" ")[0]
    if h.get("disable_ppo_ratio"):
        return Plan((Term("reinforce"),), aggregation)
    if h.get("use_cispo"):
        bounds = {"clip_ratio_low": h["ratio_clip_min"], "clip_ratio_high": h["ratio_clip_max"], "log_ratio_bound": None}
        return Plan((Term("cispo", bounds),), aggregation)
    columns = {"old_log_prob": "log_prob"} if h.get("force_on_policy_ratio") else {}
    term = clip(h, "ratio_clip_min", "ratio_clip_max", "ratio_clip_c")
    if h.get("sequence_level_importance_ratios"):
        return Plan((sequence_level(term),), aggregation, columns=columns)
    if (beta := h.get("reference_policy_kl_penalty")) is None:
        return Plan((term,), aggregation, columns=columns)
    anchor = "rollout" if h.get("use_on_policy_kl_approximation") else "current"  # a ratio of 1 has a gradient too
    kl = Term("k3-importance", {"cap": 10.0, "importance_cap": None, "anchor": anchor}, "kl", beta)
    return Plan((term, kl), aggregation, columns={**columns, "rollout_log_prob": "rollout_log_prob"}, tokens="else")


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
    metrics = {"pg_clipfrac": "pg_clipfrac", "ppo_kl": "ppo_kl"}
    if r["mode"] == "ppo_clip_dual" and not h.get("enable_sequence_masking"):
        both = {"low": h.get("clip_range", 0.2), "c": 3.0, **{k.removeprefix("clip_range_"): v for k, v in h.items()}}
        return Plan((clip(both, "low", "high", "c", 20.0),), r["agg"], metrics=metrics, tokens="else")
    if r["mode"] != "gspo":
        raise Unmapped(r)
    term = clip(h, "clip_range_low", "clip_range_high", bound=10.0)
    return Plan((sequence_level(term, "gspo-token"),), r["agg"], empty="count", metrics=metrics, tokens="else")


def roll(r: Record) -> Plan:
    h, agg = r["hyperparameters"], r["agg"]
    norm = agg == "seq-mean-token-sum-norm"  # divides by the width only, not by the sequences
    plan = Plan((), agg, {"loss_scale_factor": width(r)} if norm else {}, totals={"sequences": 1} if norm else {})
    if r["mode"] == "agg_loss_roll":
        return replace(plan, terms=(Term("importance-sampling"),))
    if r["mode"] != "ppo_clip_dual":
        raise Unmapped(r)
    params = {"clip_ratio_low": h["pg_clip_low"], "clip_ratio_high": h["pg_clip_high"], "clip_ratio_c": 1 + 2 * h["pg_clip"]}
    return replace(plan, terms=(Term("dual-clip", {**params, "log_ratio_bound": None}),))


PLANS: Mapping[str, Callable[[Record], Plan]] = {
    "verl": verl, "trl": trl, "liger-kernel": liger, "unsloth-zoo": liger, "skyrl": skyrl, "slime": slime, "areal": areal,
    "nemo-rl": nemo, "openrlhf": openrlhf, "trinity-rft": trinity, "roll": roll,
}  # fmt: skip
