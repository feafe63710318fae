"""How records of weighted, regressed and distilled losses read in our words: what they share is that no ratio is clipped in them."""

from golden.policy_plans import SKYRL, Plan, Term, case_of, clip, trl
from golden.records import Record, Unmapped


def cispo(r: Record) -> Plan:
    h, framework = r["hyperparameters"], r["framework"]
    if framework == "trl":
        return trl(r)
    if framework == "skyrl":
        own = {"cispo_eps_clip_low": 1.0, "cispo_eps_clip_high": 4.0, "cispo_anchor": "old", **h.get("cispo", {})}
        aggregation, norm = SKYRL[r["agg"]]
        columns = {"old_log_prob": "rollout_log_prob"} if own["cispo_anchor"] == "rollout" else {}
        bounds = {"clip_ratio_low": own["cispo_eps_clip_low"], "clip_ratio_high": own["cispo_eps_clip_high"]}
        metrics = {"pg_clipfrac": "clip_ratio"}
        return Plan((Term("cispo", bounds),), aggregation, norm, empty="count", columns=columns, metrics=metrics, tokens="weighted")
    if framework == "verl":
        return Plan((Term("cispo", h),), r["agg"], metrics={"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl"})
    if framework == "slime":
        bounds = {"clip_ratio_low": h["eps_clip"], "clip_ratio_high": h["eps_clip_high"], "log_ratio_bound": None}
        return Plan((Term("cispo", bounds),), "token-mean", metrics={"pg_clipfrac": "clipfrac"})
    if framework == "roll":
        bounds = {"clip_ratio_low": h["cispo_epsilon_low"], "clip_ratio_high": h["cispo_epsilon_high"], "log_ratio_bound": None}
        return Plan((Term("cispo", bounds),), r["agg"])
    if framework != "trinity-rft":
        raise Unmapped(r)
    bounds = {"clip_ratio_low": h.get("clip_range_low", 1.0), "clip_ratio_high": h.get("clip_range_high", 0.28)}
    term = Term("cispo", {**bounds, "mask_clipped": h.get("enable_mask_clip", False)})
    return Plan((term,), r["agg"], metrics={"ppo_kl": "ppo_kl"}, tokens="else")


def rollout_is(r: Record) -> Plan:
    h = r["hyperparameters"]
    aggregation, norm = SKYRL[r["agg"]]
    term = Term("rollout-is", {"clip_ratio_low": h["eps_clip_low"], "clip_ratio_high": h["eps_clip_high"]})
    return Plan((term,), aggregation, norm, empty="count", tokens="weighted")


def tis_pg(r: Record) -> Plan:
    return Plan((Term("tis", {**r["hyperparameters"], "log_ratio_bound": None}),), r["agg"])


def topr(r: Record) -> Plan:
    h, roll = r["hyperparameters"], r["framework"] == "roll"
    weights = {f"topr_{k}": h[k] for k in ("positive_weight", "negative_weight") if k in h}
    params = {"importance_sampling_level": "token", "positive_by": "reward" if roll else "advantage", "log_ratio_bound": None, **weights}
    return Plan((Term("topr", params),), r["agg"], columns={"rewards": "score"} if roll else {}, tokens="loss" if roll else "else")


def dro(r: Record) -> Plan:
    h, verl = r["hyperparameters"], r["mode"] == "dro"
    beta = h["policy_loss"]["dro_beta"] if verl else h["kimi15_tau"]
    return Plan((Term("dro", {"dro_beta": beta}),), r["agg"], metrics={"ppo_kl": "actor/ppo_kl"} if verl else {})


def opmd(r: Record) -> Plan:
    return Plan((Term("opmd", r["hyperparameters"]),), r["agg"], tokens="else")


def vespo(r: Record) -> Plan:
    return trl(r)


def decoupled_ppo(r: Record) -> Plan:
    h = r["hyperparameters"]
    rejection = h["rejection_sampling"]
    if rejection["metric"] != "ratio" or rejection["agg"] != "mean":
        raise Unmapped(r)
    params = {
        **clip(h, "eps_clip", "eps_clip_higher").params, "behav_imp_weight_cap": rejection["upper"], "action": rejection["action"],
        "behav_imp_weight_floor": rejection["lower"] or 0.0, "importance_sampling_level": rejection["level"],
    }  # fmt: skip
    return Plan((Term("decoupled-ppo", params),), "token-mean", tokens="loss")


def prime_rl(r: Record) -> Plan:
    use = {"prime_rl_default": "prime-rl", "prime_rl_ipo": "prime-ipo", "prime_rl_ref_kl": "prime-ref-kl"}[r["mode"]]
    return Plan((Term(use, {**r["hyperparameters"], "log_ratio_bound": None}),), "token-mean")


def opsm(r: Record) -> Plan:
    columns = {"rollout_log_prob": "rollout_log_prob" if "rollout_log_prob" in r["inputs"] else "old_log_prob"}
    plan = trl(r)
    (term,) = plan.terms
    return plan.using(Term("opsm", {**term.params, "opsm_delta": r["hyperparameters"]["off_policy_mask_threshold"]}), **columns)


# ── regressions, of sequences and of groups ──────────────────────────────────────────────────────────────────────────


def gvpo(r: Record) -> Plan:
    """The recipe leaves the number of prompts to its caller."""
    h = r["hyperparameters"]
    return Plan((Term("gvpo", {"beta": h["beta"]}),), "seq-mean-token-mean", totals={"sequences": h["n"]}, groups="uid")


def real(r: Record) -> Plan:
    return Plan((Term("real", {"real_tau": r["hyperparameters"]["real_tau"]}),), "group-mean", groups="uid")


def flowrl(r: Record) -> Plan:
    h = r["hyperparameters"]
    term = Term("flowrl", {"flowrl_beta_coef": h["flowrl_beta_coef"], "log_ratio_bound": None})
    made = {"log_z": lambda r: case_of(r)[1].new_full((len(case_of(r)[1]),), h["log_z"])}
    return Plan((term,), "seq-mean-token-mean", empty="count", made=made)


def a2po(r: Record) -> Plan:
    return Plan((Term("a2po", r["hyperparameters"]),), "seq-mean-token-mean", empty="count", columns={"rewards": "score"}, groups="uid")


# ── distillation ─────────────────────────────────────────────────────────────────────────────────────────────────────


def opd(r: Record) -> Plan:
    h = r["hyperparameters"]
    if h["loss_mode"] != "k1" or not h["use_policy_gradient"] or h["policy_loss_mode"] != "vanilla":
        raise Unmapped(r)
    bounds = {"clip_ratio_low": h["clip_ratio"], "clip_ratio_high": h["clip_ratio"], "clip_ratio_c": h["clip_ratio_c"]}
    metrics = {"pg_clipfrac": "actor/pg_clipfrac", "ppo_kl": "actor/ppo_kl", "pg_clipfrac_lower": "actor/pg_clipfrac_lower"}
    return Plan((Term("opd", {**bounds, "loss_max_clamp": h["loss_max_clamp"]}),), r["agg"], metrics=metrics)


def kdrl(r: Record) -> Plan:
    """Beside a reward AReaL takes the bare log-ratio, whose gradient knows no teacher; alone, the weighted one."""
    h = r["hyperparameters"]
    alone = not h["rl_loss_weight"]
    distil = Term("kdrl", {"weigh": alone, "log_ratio_bound": None}, "auxiliary_loss", h["distill_loss_weight"])
    learn = Term("ppo-clip", clip(h, "eps_clip", "eps_clip_higher").params, coef=h["rl_loss_weight"])
    return Plan((distil,) if alone else (learn, distil), r["agg"], tokens="else")


def sdpo(r: Record) -> Plan:
    h = r["hyperparameters"]
    if h["distillation_alpha"] != 1:
        raise Unmapped(r)
    return Plan((Term("sdpo", {"is_clip": h["is_clip"]}),), "token-mean")


def iw_opd(r: Record) -> Plan:
    sampler = "old_log_prob" if any("old_log_prob" in name for name in r["inputs"]) else "log_prob"
    return Plan((Term("iw-opd", r["hyperparameters"]),), r["agg"], columns={"rollout_log_prob": sampler})


def sdar(r: Record) -> Plan:
    metrics = {"sdar/gate": "sdar/gate_mean", "sdar/teacher_gap": "sdar/teacher_gap_mean"}
    return Plan((Term("sdar", r["hyperparameters"], "auxiliary_loss"),), r["agg"], metrics=metrics)


MODES = {
    "cispo": cispo, "rollout_is(icepop)": rollout_is, "tis_pg": tis_pg, "topr": topr, "dro": dro, "kimi15": dro, "opmd": opmd, "vespo": vespo,
    "decoupled_ppo": decoupled_ppo, "prime_rl_default": prime_rl, "prime_rl_ipo": prime_rl, "prime_rl_ref_kl": prime_rl,
    "off_policy_seq_mask": opsm, "gvpo": gvpo, "real": real, "flowrl": flowrl, "a2po": a2po,
    "opd_pg_k1": opd, "opd_kdrl": kdrl, "sdpo_sampled_token": sdpo, "iw_opd": iw_opd, "sdar": sdar,
}  # fmt: skip
