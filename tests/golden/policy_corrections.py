"""How the corrections of a policy record read in our words: a chain of components, and what counts in the denominator."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from golden import policy_modes, policy_plans
from golden.policy_plans import Plan, Term, clip
from golden.records import Record, Unmapped, corrected, difference
from torch import Tensor

from lossary.batch import Batch
from lossary.numerics import mismatch
from lossary.registry import Level, Max, Mean, Min

WEIGHS_ONLY = {"truncated-is", "batch-normalise"}


def rule(name: str, **params: Any) -> Term:
    return Term(name, params, "correction")


# ── one function per framework: the corrections, and what counts ─────────────────────────────────────────────────────


def band(threshold: str | float) -> tuple[float, float]:
    """Read verl's thresholds: ``"low_high"``, or one number, which is the upper bound of a pair of inverses."""
    if isinstance(threshold, str) and "_" in threshold:
        low, high = threshold.split("_")
        return float(low), float(high)
    return 1 / float(threshold), float(threshold)


def verl_weights(h: Mapping[str, Any]) -> tuple[Term, ...]:
    if (level := h.get("rollout_is")) is None:
        return ()
    threshold = h["rollout_is_threshold"]
    if isinstance(threshold, str) and "_" in threshold:
        lower, upper = band(threshold)
        terms = [rule("icepop", lower=lower, upper=upper) if level == "token" else rule("masked-is", level=level, lower=lower, upper=upper)]
    else:
        terms = [rule("truncated-is", level=level, cap=float(threshold))]
    if h.get("rollout_is_batch_normalize"):
        terms.append(rule("batch-normalise", weighting=level))
    return tuple(terms)


def verl_rejections(h: Mapping[str, Any]) -> tuple[Term, ...]:
    """Whole sequences first: then no statistic is taken over what another rule left, just as when masks are joined."""
    if not h.get("rollout_rs"):
        return ()
    terms = []
    thresholds = str(h["rollout_rs_threshold"]).split(",")
    for option, threshold in zip(h["rollout_rs"].split(","), thresholds, strict=True):
        agg, _, statistic = option.removeprefix("seq_").rpartition("_")
        if statistic == "k1":  # of roll / old: its bounds are the inverse ones
            low, high = band(threshold)
            terms.append(rule("reject-k1", agg=agg, lower=1 / high, upper=1 / low))
        else:
            terms.append(rule(f"reject-{statistic}", agg=agg, upper=float(threshold)))
    return tuple(sorted(terms, key=lambda term: term.params["agg"] == "token"))


def verl(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "rollout_rejection_mask":
        return Plan((), "token-sum", corrections=verl_rejections(h), tokens="keep")
    if r["mode"] == "rollout_is_weights":
        return Plan((), "token-sum", corrections=verl_weights(h), tokens="weight")
    if r["mode"] == "offpolicy_metrics":
        return Plan((), "token-sum", tokens="mismatch")
    if r["mode"] == "bypass":  # the current policy stands in for the old one in the corrections, the sampler's in the loss
        rejections, weights = verl_rejections(h), verl_weights(h) if h["loss_type"] == "reinforce" else ()
        base = Plan((Term("reinforce"),), r["agg"]) if weights else policy_modes.plan_of(r)
        kept = "kept" if rejections else "original"
        return replace(base, corrections=(*rejections, *weights), denominator=kept, sees={"old_log_prob": "log_prob"})
    return replace(policy_modes.plan_of(r), corrections=verl_weights(h["rollout_is_weights_from"]))


def trl(r: Record) -> Plan:
    h, base = r["hyperparameters"], policy_modes.plan_of(r)
    if r["mode"] == "off_policy_seq_mask":  # a loss of its own
        return base
    return replace(base, corrections=(vllm_is(h["vllm_is"], ""),))


def vllm_is(h: Mapping[str, Any], prefix: str) -> Term:
    level, _, what = h[f"{prefix}mode"].partition("_")
    low, high = h[f"{prefix}clip_min"], h[f"{prefix}clip_max"]
    if what == "truncate":
        return rule("truncated-is", level=level, floor=low or 0.0, cap=high, log_ratio_bound=None)
    return rule("masked-is", level=level, lower=low, upper=high, log_ratio_bound=None)


def unsloth(r: Record) -> Plan:
    return replace(policy_modes.plan_of(r), corrections=(vllm_is(r["hyperparameters"], "vllm_importance_sampling_"),))


def skyrl(r: Record) -> Plan:
    h = r["hyperparameters"]
    shape = Plan((), "token-sum", empty="count", metrics={"pg_clipfrac": "clip_ratio"}, tokens="weighted")
    if r["mode"] == "rollout_is(icepop)":
        params = {"clip_ratio_low": h["eps_clip_low"], "clip_ratio_high": h["eps_clip_high"]}
        return replace(shape, terms=(Term("rollout-is", params),))
    return replace(shape, terms=(Term("ppo-clip"),), corrections=skyrl_chain(h["off_policy_correction"]))


def skyrl_chain(h: Mapping[str, Any]) -> tuple[Term, ...]:
    terms = []
    if h.get("outlier_token_is_threshold_low") is not None or h.get("outlier_token_is_threshold_high") is not None:
        terms.append(rule("outlier", lower=h.get("outlier_token_is_threshold_low"), upper=h.get("outlier_token_is_threshold_high")))
    if h.get("token_mask_is_threshold_low") is not None:
        low, high = h["token_mask_is_threshold_low"], h["token_mask_is_threshold_high"]
        terms.append(rule("reject-k1", agg="token", lower=low, upper=high))
    if (kind := h.get("tis_ratio_type")) is not None:
        default = 2.0 if kind == "token" else 5.0
        terms.append(rule("truncated-is", level=kind, cap=h.get(f"{kind}_tis_ratio_clip_high", default)))
    if h.get("sequence_mask_metric") == "geometric":
        terms.append(rule("reject-k1", agg="mean", lower=h.get("geo_mask_low", 0.99), upper=h.get("geo_mask_high", 1.01)))
    if h.get("sequence_mask_metric") == "product":
        terms.append(rule("reject-k1", agg="sum", lower=h.get("product_mask_low", 0.5), upper=h.get("product_mask_high", 2.0)))
    return tuple(terms)


def slime(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "off_policy_seq_mask":
        return Plan((), "token-sum", corrections=(rule("off-policy-sequence", behaviour="old", opsm_delta=h["opsm_delta"]),), tokens="keep")
    if "icepop" in r["function"]:
        term = rule("icepop", lower=h["tis_clip_low"], upper=h["tis_clip"], log_ratio_bound=None)
    else:
        term = rule("truncated-is", floor=h["tis_clip_low"], cap=h["tis_clip"], log_ratio_bound=None)
    return Plan((), "token-sum", corrections=(term,), tokens="weight")


def areal(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["mode"] == "m2po_mask":
        return Plan((), "token-sum", corrections=(rule("m2po", **h),), tokens="keep")
    if h["rejection_sampling"]["metric"] == "ratio":  # a loss of its own
        return policy_modes.plan_of(r)
    return replace(policy_plans.areal(r), corrections=areal_chain(h["rejection_sampling"]))


def areal_chain(h: Mapping[str, Any]) -> tuple[Term, ...]:
    """At level ``sequence`` a ratio weighs by its geometric mean, whatever it is judged by; other metrics leave the token's ratio."""
    agg = h.get("agg", "mean") if h["level"] == "sequence" else "token"
    level = "geometric" if h["level"] == "sequence" and h["metric"] == "ratio" else "token"
    if h["action"] == "clamp":
        return (rule("truncated-is", level=level, floor=h["lower"] or 0.0, cap=h["upper"], log_ratio_bound=None),)
    weight = rule("truncated-is", level=level, cap=None, log_ratio_bound=None)
    if h["metric"] == "ratio":
        return rule("reject-k1", agg=agg, lower=h["lower"], upper=h["upper"]), weight
    if h["metric"] == "kl_k1":
        low, high = (None if b is None else float(torch.tensor(b, dtype=torch.float64).exp()) for b in (h["lower"], h["upper"]))
        return rule("reject-k1", agg=agg, lower=low, upper=high), weight
    inverse = {"inverse": True, "log_ratio_bound": None} if h["metric"] == "kl_k3" else {}
    return rule(f"reject-{h['metric'].removeprefix('kl_')}", agg=agg, upper=h["upper"], **inverse), weight


def nemo(r: Record) -> Plan:
    h = r["hyperparameters"]
    level = "sequence" if h.get("sequence_level_importance_ratios") else "token"
    low, high = h.get("truncated_importance_sampling_ratio_min"), h.get("truncated_importance_sampling_ratio")
    return replace(policy_modes.plan_of(r), corrections=nemo_chain(h.get("truncated_importance_sampling_type"), low, high, level))


def nemo_chain(kind: str | None, low: float | None, high: float | None, level: str = "token") -> tuple[Term, ...]:
    if kind == "icepop":
        return (rule("icepop", lower=low, upper=high, log_ratio_bound=None),)
    if kind == "seq-mask-tis":
        gate = rule("reject-k1", agg="mean", lower=low, upper=high)
        return gate, rule("truncated-is", level=level, cap=None, log_ratio_bound=None)
    return (rule("truncated-is", level=level, floor=low or 0.0, cap=high, log_ratio_bound=None),)


def openrlhf(r: Record) -> Plan:
    h, base = r["hyperparameters"], policy_modes.plan_of(r)
    if h.get("policy_loss_type") == "gspo":  # the ratio of the sequence is taken to the sampler, and nothing is weighed
        return replace(base, columns={**base.columns, "old_log_prob": "rollout_log_prob"})
    return replace(base, corrections=openrlhf_chain(h))


def openrlhf_chain(h: Mapping[str, Any]) -> tuple[Term, ...]:
    low, high = h.get("is_correction_threshold", (0.5, 5.0))
    lower = None if low == float("-inf") or low == "-inf" else float(low)
    gating = h.get("is_correction_gating", "ratio")
    if h.get("is_correction_mode", "mask") == "clip":
        return (rule("truncated-is", floor=lower or 0.0, cap=high, log_ratio_bound=OPENRLHF_BOUND),)
    agg = {"token": "token", "seq": "mean"}[h["is_correction_level"]]
    gate = {
        "ratio": rule("reject-k1", agg=agg, lower=lower, upper=high),
        "binary_kl": rule("reject-binary-kl", agg=agg, upper=high),
        "tv": rule("reject-probability", agg=agg, lower=None, upper=high, absolute=True),
    }[gating]
    return gate, rule("truncated-is", cap=None, log_ratio_bound=OPENRLHF_BOUND)


OPENRLHF_BOUND = 20.0


def trinity(r: Record) -> Plan:
    h = r["hyperparameters"]
    gone = rule("off-policy-sequence", behaviour="old", opsm_delta=h.get("delta_sequence_masking", 0.1))
    term = clip({**h, "c": 3.0}, "clip_range", "clip_range_high", "c", bound=20.0)
    return Plan((term,), r["agg"], empty="count", corrections=(gone,), tokens="else")


# ── which records ────────────────────────────────────────────────────────────────────────────────────────────────────

CHAINS: Mapping[str, Callable[[Record], Plan]] = {
    "verl": verl, "trl": trl, "unsloth-zoo": unsloth, "skyrl": skyrl, "slime": slime, "miles/slime": slime, "areal": areal, "nemo-rl": nemo,
    "openrlhf": openrlhf, "trinity-rft": trinity,
}  # fmt: skip


def concerns(r: Record) -> bool:
    """Whether a record says something about the mismatch between sampler and trainer."""
    h = r["hyperparameters"]
    modes = ("rollout_is_weights", "vllm_is", "off_policy_correction", "rollout_is(icepop)", "decoupled_ppo", "rollout_rejection_mask",
             "m2po_mask", "off_policy_seq_mask", "offpolicy_metrics")  # fmt: skip
    if r["mode"] == "bypass":
        return h["loss_type"] == "reinforce" or h["rollout_rs"] is not None
    if r["mode"] == "ppo_clip_dual":
        return "rollout_is_weights_from" in h or bool(h.get("enable_sequence_masking"))
    said = ("use_importance_sampling_correction", "is_correction_level", "vllm_importance_sampling_mode")
    return r["mode"] in modes or any(h.get(key) not in (None, False, "off") for key in said)


def plan_of(r: Record) -> Plan:
    if not concerns(r):
        return policy_modes.plan_of(r)
    if r["framework"] not in CHAINS:
        raise Unmapped(r)
    plan = CHAINS[r["framework"]](r)
    comparable = plan.denominator == "kept" or all(term.name in WEIGHS_ONLY for term in plan.corrections)
    return plan if comparable else replace(plan, metrics={})  # theirs are over all tokens


# ── what ours gives ──────────────────────────────────────────────────────────────────────────────────────────────────


def chained(whole: Batch, plan: Plan) -> tuple[Tensor, Tensor]:
    """Return ``(weight, keep)`` of all tokens."""
    seen = whole.with_columns(Level.TOKEN, **{ours: whole[theirs].detach() for ours, theirs in plan.sees.items()})
    return corrected(seen, [(term.name, term.params) for term in plan.corrections])


def bare(r: Record, plan: Plan, whole: Batch, tensor: Callable[[Any], Tensor], rtol: float) -> list[str]:
    """Return what of a record without a loss ours does not meet: weights, masks, or the distance of the two policies."""
    if plan.tokens == "mismatch":
        return distance(r, whole, rtol)
    weight, keep = chained(whole, plan)
    theirs = tensor(r["loss_per_token"])
    ours = whole.unpack(weight if plan.tokens == "weight" else keep.double(), float("nan"))
    seen = ~theirs.isnan() & ~ours.isnan()
    return difference(plan.tokens, ours[seen], theirs[seen], rtol, 1e-9)


def distance(r: Record, whole: Batch, rtol: float) -> list[str]:
    ours = measured(mismatch(whole["old_log_prob"], whole["rollout_log_prob"], whole.sequences))
    return [
        found
        for name, theirs in r["metrics"].items()
        for found in difference(name, ours[name], torch.tensor(theirs, dtype=torch.float64), rtol, 1e-9)
    ]


def measured(report: Mapping[str, Mean | Max | Min]) -> dict[str, Tensor]:
    """Reduce what was reported, over one batch."""
    reduce = {Mean: torch.Tensor.mean, Max: torch.Tensor.amax, Min: torch.Tensor.amin}
    return {name: reduce[type(m)]((m.x if m.where is None else m.x[m.where]).double()) for name, m in report.items()}
