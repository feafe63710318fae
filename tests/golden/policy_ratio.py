"""How records of the clip family and its kin read in our words: what they share is a ratio, and a bound of some kind on it."""

import torch
from golden.policy_plans import SKYRL, Plan, Term, case_of, clip, columns_of, trl, valid
from golden.records import Record, Unmapped
from torch import Tensor


def gmpo(r: Record) -> Plan:
    h = r["hyperparameters"]
    if r["framework"] == "verl":
        bounds = {"clip_ratio_low": h["clip_ratio_low"], "clip_ratio_high": h["clip_ratio_high"], "log_ratio_bound": None}
        made = {"correction": lambda r: truncated(r, h["rollout_is_weights_from"])} if "rollout_is_weights_from" in h else {}
        return Plan((Term("gmpo", bounds),), "seq-mean-token-mean", empty="count", made=made, metrics={"ppo_kl": "actor/ppo_kl"})
    bounds = {"clip_ratio_low": h["epsilon"], "clip_ratio_high": h.get("epsilon_high", h["epsilon"]), "log_ratio_bound": None}
    terms = [Term("gmpo", bounds)]
    if h.get("beta"):
        terms.append(Term("k3", {"log_ratio_bound": None}, "kl", h["beta"]))
    selection = (
        [Term("high-entropy", {"top_entropy_quantile": h["top_entropy_quantile"]}, "correction")] if "top_entropy_quantile" in h else []
    )
    return Plan(tuple(terms), "seq-mean-token-mean", empty="count", corrections=tuple(selection), denominator="kept", columns=columns_of(r))


def truncated(r: Record, how: dict[str, float | str]) -> Tensor:
    """Return verl's weights against the mismatch of sampler and trainer, at most a threshold."""
    case, mask = case_of(r)
    if how["rollout_is"] != "token" or isinstance(how["rollout_is_threshold"], str):
        raise Unmapped(r)
    return ((case["old_log_prob"] - case["rollout_log_prob"]).clamp(-20, 20).exp() * mask).clamp(max=how["rollout_is_threshold"])


def rloo(r: Record) -> Plan:
    term = Term("sequence-clip", clip(r["hyperparameters"], "epsilon", "epsilon_high").params)
    return Plan((term,), "seq-mean-token-mean", empty="count", columns=columns_of(r))


def aspo(r: Record) -> Plan:
    return Plan((Term("aspo", r["hyperparameters"]),), r["agg"], tokens="loss")


def bapo(r: Record) -> Plan:
    params = {k: v for k, v in r["hyperparameters"].items() if k != "eps"}
    theirs = {"pg_clipfrac": "pg_clipfrac", "ppo_kl": "ppo_kl", "pg_clipfrac_lower": "pg_clipfrac_lower"}
    return Plan((Term("bapo", params),), r["agg"], metrics={**theirs, "bapo/clip_low": "clip_low", "bapo/clip_high": "clip_high"})


def dppo(r: Record) -> Plan:
    h, use = r["hyperparameters"], r["mode"].replace("_", "-")
    if r["framework"] == "verl":
        neutral = (valid(r, "advantages") == 0).any()  # theirs counts A = 0 as a negative advantage
        metrics = {"ppo_kl": "actor/ppo_kl"} if neutral else {"ppo_kl": "actor/ppo_kl", "pg_clipfrac": "actor/pg_clipfrac"}
        return Plan((Term(use, {"clip_ratio_c": 3.0, **h}),), r["agg"], metrics=metrics)
    delta = {"delta_low": 0.2, "delta_high": 0.2, **h.get("dppo", {})}
    params = {"clip_ratio_low": delta["delta_low"], "clip_ratio_high": delta["delta_high"], "clip_ratio_c": None, "objective": "ratio"}
    columns = {"old_log_prob": "rollout_log_prob"} if "rollout_log_prob" in r["inputs"] else {}
    aggregation, norm = SKYRL[r["agg"]]
    return Plan((Term(use, params),), aggregation, norm, empty="count", columns=columns, tokens="weighted")


def sapo(r: Record) -> Plan:
    h, framework = r["hyperparameters"], r["framework"]
    if framework == "trl":
        return trl(r)
    taus = {k: h[k] for k in ("tau_pos", "tau_neg", "importance_sampling_level") if k in h}
    if framework == "skyrl":
        aggregation, norm = SKYRL[r["agg"]]
        taus = {k: v for k, v in h.get("sapo", {}).items() if k.startswith("tau_")}
        return Plan((Term("sapo", taus),), aggregation, norm, empty="count", tokens="weighted")
    if framework == "areal":
        columns = {"advantages": "mean of the row"} if h.get("importance_sampling_level") == "sequence" else {}
        return Plan((Term("sapo", {**taus, "log_ratio_bound": None}),), r["agg"], columns=columns)
    return Plan((Term("sapo", taus),), r["agg"], metrics={"ppo_kl": "actor/ppo_kl"} if framework == "verl" else {})


def sppo(r: Record) -> Plan:
    return Plan((Term("sppo", r["hyperparameters"]),), r["agg"], empty="count", metrics={"pg_clipfrac": "pg_clipfrac"}, tokens="else")


def rec(r: Record) -> Plan:
    params = {"clip_mode": "none", "log_ratio_bound": None, **r["hyperparameters"]}
    return Plan((Term("rec", params),), r["agg"], empty="count", metrics={"pg_clipfrac": "pg_clipfrac"}, tokens="else")


def fipo(r: Record) -> Plan:
    h = dict(r["hyperparameters"])
    params = {"clip_ratio_low": h.pop("epsilon"), "clip_ratio_high": h.pop("epsilon_high"), **h, "log_ratio_bound": None}
    return Plan((Term("fipo", params),), "token-mean")


def segment_ratio(r: Record) -> Plan:
    """ROLL takes each run of the mask for a segment."""
    bounds = {"clip_ratio_low": r["hyperparameters"]["pg_clip"], "clip_ratio_high": r["hyperparameters"]["pg_clip"]}
    made = {"turns": lambda r: (case_of(r)[1] == 0).cumsum(1)}
    return Plan((Term("segment-ratio", {**bounds, "log_ratio_bound": None}),), r["agg"], made=made)


def high_entropy(r: Record) -> Plan:
    plan = trl(r)
    (term,) = plan.terms
    return plan.using(Term("high-entropy", {**term.params, "top_entropy_quantile": r["hyperparameters"]["top_entropy_quantile"]}))


def covariance(r: Record) -> Plan:
    """Clip-Cov and KL-Cov: SkyRL divides the advantages before it measures their covariance, verl the loss after."""
    h, skyrl, name = r["hyperparameters"], r["framework"] == "skyrl", r["mode"]
    theirs = h.get(name, {}) if skyrl else h["policy_loss"]
    params = {{"clip_ratio": "clip_cov_ratio", "kl_cov_frac": "kl_cov_ratio"}.get(k, k): v for k, v in theirs.items()}
    if name == "clip_cov":
        lower, upper = ("eps_clip_low", "eps_clip_high") if skyrl else ("clip_ratio_low", "clip_ratio_high")
        params |= {"clip_ratio_low": h.get(lower, 0.2), "clip_ratio_high": h.get(upper, 0.2)}
    elif skyrl:
        params = {"kl_cov_ratio": 0.2, **params}
    made = {"noise": drawn}
    if skyrl and r["agg"] == "token_mean":
        made["advantages"] = lambda r: case_of(r)[0]["advantages"] / case_of(r)[1].sum()
    metrics = {} if skyrl else {"ppo_kl": "actor/ppo_kl"} if name == "clip_cov" else {"ppo_kl_abs": "actor/ppo_kl"}
    term = Term(name.replace("_", "-"), {**params, "log_ratio_bound": None})
    return Plan((term,), "token-sum" if skyrl else r["agg"], made=made, metrics=metrics)


def drawn(r: Record) -> Tensor:
    """Return noise that leads ours to the tokens that theirs drew by chance: those with an advantage and no gradient."""
    grad, advantages = torch.tensor(r["grad_log_prob"], dtype=torch.float64), case_of(r)[0]["advantages"]
    return torch.where(grad != 0, 0.9, torch.where(advantages == 0, 0.5, 0.1)).double()


MODES = {
    "gmpo": gmpo, "rloo_seq_ppo": rloo, "aspo": aspo, "bapo": bapo, "dppo_tv": dppo, "dppo_kl": dppo, "sapo": sapo, "spo_sppo": sppo,
    "rec": rec, "fipo": fipo, "segment_ratio": segment_ratio, "high_entropy_mask": high_entropy, "clip_cov": covariance, "kl_cov": covariance,
}  # fmt: skip
