"""A verl configuration as a recipe. Its defaults are those of 0.9.1."""

from collections.abc import Mapping
from typing import Any

from ..gate import IntegrationError
from .mapping import APPROXIMATED, DROPPED, Reading

ACTOR = "actor_rollout_ref.actor."
DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae", "algorithm.gamma": 1.0, "algorithm.lam": 1.0, "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False, "algorithm.kl_penalty": "kl", "algorithm.kl_ctrl.type": "fixed", "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.kl_ctrl.horizon": 10000, "algorithm.kl_ctrl.target_kl": 0.1, "algorithm.filter_groups.enable": False,
    ACTOR + "policy_loss.loss_mode": "vanilla", ACTOR + "clip_ratio_low": 0.2, ACTOR + "clip_ratio_high": 0.2, ACTOR + "clip_ratio_c": 3.0,
    ACTOR + "loss_agg_mode": "token-mean", ACTOR + "loss_scale_factor": None, ACTOR + "entropy_coeff": 0, ACTOR + "use_kl_loss": False,
    ACTOR + "kl_loss_coef": 0.001, ACTOR + "kl_loss_type": "low_var_kl", ACTOR + "tau_pos": 1.0, ACTOR + "tau_neg": 1.05,
    ACTOR + "policy_loss.clip_cov_ratio": 0.0002, ACTOR + "policy_loss.clip_cov_lb": 1.0, ACTOR + "policy_loss.clip_cov_ub": 5.0,
    ACTOR + "policy_loss.kl_cov_ratio": 0.0002, ACTOR + "policy_loss.ppo_kl_coef": 0.1, "critic.cliprange_value": 0.5,
    "critic.loss_agg_mode": "token-mean", "algorithm.rollout_correction.rollout_is": None, "algorithm.rollout_correction.rollout_is_threshold": 2.0,
    "algorithm.rollout_correction.rollout_rs": None, "reward_model.overlong_buffer.enable": False,
}  # fmt: skip
CLIP = {"clip_ratio_low": "clip_ratio_low", "clip_ratio_high": "clip_ratio_high"}
LOSSES: Mapping[str, tuple[str, Mapping[str, str], Mapping[str, Any]]] = {
    "vanilla": ("dual-clip", {**CLIP, "clip_ratio_c": "clip_ratio_c"}, {}),
    "dppo_tv": ("dppo-tv", {**CLIP, "clip_ratio_c": "clip_ratio_c"}, {}),
    "dppo_kl": ("dppo-kl", {**CLIP, "clip_ratio_c": "clip_ratio_c"}, {}),
    "gspo": ("gspo-token", CLIP, {"log_ratio_bound": 10}),
    "sapo": ("sapo", {"tau_pos": "tau_pos", "tau_neg": "tau_neg"}, {"log_ratio_bound": 20}),
    "gpg": ("reinforce", {}, {}),
    "geo_mean": ("gmpo", CLIP, {"log_ratio_bound": None}),
    "cispo": ("cispo", CLIP, {}),
    "dro": ("dro", {"policy_loss.dro_beta": "dro_beta"}, {}),
    "clip_cov": (
        "clip-cov",
        {**CLIP, **{f"policy_loss.clip_cov_{k}": f"clip_cov_{k}" for k in ("ratio", "lb", "ub")}},
        {"log_ratio_bound": None},
    ),
    "kl_cov": (
        "kl-cov",
        {"policy_loss.kl_cov_ratio": "kl_cov_ratio", "policy_loss.ppo_kl_coef": "ppo_kl_coef"},
        {"log_ratio_bound": None},
    ),
}
"""By loss mode: our loss, its settings there and here, and what is fixed there."""
KL: Mapping[str, Mapping[str, Any]] = {
    "kl": {"use": "k1", "log_ratio_bound": None}, "k1": {"use": "k1", "log_ratio_bound": None},
    "abs": {"use": "abs", "log_ratio_bound": None}, "mse": {"use": "k2", "log_ratio_bound": None},
    "k2": {"use": "k2", "log_ratio_bound": None}, "low_var_kl": {"use": "k3", "cap": 10}, "k3": {"use": "k3", "cap": 10},
}  # fmt: skip
ALONE = {"singleton": "reward"}
ESTIMATORS: Mapping[str, Any] = {
    "grpo": {"use": "grpo", **ALONE}, "grpo_vectorized": {"use": "grpo", **ALONE}, "rloo": {"use": "rloo", **ALONE},
    "rloo_vectorized": {"use": "rloo"}, "reinforce_plus_plus_baseline": {"use": "reinforce-plus-plus-baseline", **ALONE},
    "remax": {"use": "remax"}, "opo": {"use": "opo", **ALONE}, "gpg": {"use": "gpg", "count": "nonzero-rewards", **ALONE},
    "grpo_passk": {"use": "grpo-passk"}, "gdpo": {"use": "gdpo", **ALONE},
    "optimal_token_baseline": {"use": "optimal-token-baseline", **ALONE}, "tir_optimal_token_baseline": {"use": "tir-optimal-token-baseline"},
}  # fmt: skip
REASONS = {
    "trainer.": "the trainer's, not the loss's", "data.": "the data's, not the loss's", "actor_rollout_ref.rollout.": "the sampler's",
    "actor_rollout_ref.model.": "the model's", "actor_rollout_ref.ref.": "how the reference is run", ACTOR + "optim.": "the optimizer's",
    ACTOR + "ppo_": "how a step is cut; any cut gives the same gradient here", "critic.": "how the critic is run",
    ACTOR + "fsdp_config.": "how the model is spread", "reward_model.": "where rewards come from",
}  # fmt: skip


def read(r: Reading) -> None:
    """Fill the recipe of a reading."""
    r.values = {_long(key): value for key, value in r.values.items()}
    _advantage(r)
    _policy(r)
    _kl(r)
    if entropy := r.told(ACTOR + "entropy_coeff", "entropy.coef"):
        r.recipe["entropy"] = {"coef": entropy}
    _correction(r)
    _reward(r)
    r.recipe["aggregation"] = _aggregation(r)
    if ACTOR + "clip_ratio" in r.values:
        r.note(ACTOR + "clip_ratio", DROPPED, "", "changes nothing there: clip_ratio_low and clip_ratio_high are what is read")
    r.finish(REASONS)


def _long(key: str) -> str:
    """Return a key as Hydra knows it; ``actor.x`` is short for what everyone means."""
    return f"actor_rollout_ref.{key}" if key.startswith("actor.") else key


def _advantage(r: Reading) -> None:
    name = str(r.told("algorithm.adv_estimator", "advantage.use"))
    if name == "gae":
        gamma, lam = r.told("algorithm.gamma", "advantage.0.gamma"), r.told("algorithm.lam", "advantage.0.lam")
        r.recipe["advantage"] = [{"use": "gae", "gamma": gamma, "lam": lam}, "whiten"]
        clip = r.told("critic.cliprange_value", "value_loss.cliprange_value")
        r.recipe["value_loss"] = {
            "use": "clipped-mse",
            "cliprange_value": clip,
            "aggregation": r.told("critic.loss_agg_mode", "value_loss.aggregation"),
        }
    elif name == "reinforce_plus_plus":
        r.recipe["advantage"] = {"use": "reinforce-plus-plus", "gamma": r.told("algorithm.gamma", "advantage.gamma")}
    elif name in ESTIMATORS:
        r.recipe["advantage"] = dict(ESTIMATORS[name])
        if name in ("grpo", "grpo_vectorized", "grpo_passk"):
            scaled = r.told("algorithm.norm_adv_by_std_in_grpo", "advantage.scale")
            r.recipe["advantage"] |= {} if scaled else {"scale": "none"}
    elif name.startswith("lossary/"):
        r.recipe["advantage"] = name.removeprefix("lossary/")
    else:
        raise IntegrationError(f"algorithm.adv_estimator: {name!r} is no estimator of verl 0.9.1.")


def _policy(r: Reading) -> None:
    mode = str(r.told(ACTOR + "policy_loss.loss_mode", "policy_loss.use"))
    if mode.startswith("lossary/"):
        r.recipe["policy_loss"] = mode.removeprefix("lossary/")
        return
    if mode not in LOSSES:
        raise IntegrationError(f"actor.policy_loss.loss_mode: {mode!r} has no counterpart here.")
    use, settings, fixed = LOSSES[mode]
    said = {ours: r.told(ACTOR + theirs, f"policy_loss.{ours}") for theirs, ours in settings.items()}
    if mode == "clip_cov":
        r.note(ACTOR + "policy_loss.clip_cov_ratio", APPROXIMATED, "policy_loss.clip_cov_ratio", "which tokens are drawn differs")
    r.recipe["policy_loss"] = {"use": use, **said, **fixed}


def _kl(r: Reading) -> None:
    if r.told(ACTOR + "use_kl_loss", "kl"):
        kind, coef = str(r.told(ACTOR + "kl_loss_type", "kl.use")), r.told(ACTOR + "kl_loss_coef", "kl.coef")
        plain, plus, _ = kind.partition("+")
        if plain not in KL:
            raise IntegrationError(f"actor.kl_loss_type: {kind!r} has no counterpart here.")
        through = {"gradient": "straight-through"} if plus and plain not in ("mse", "k2") else {}
        r.recipe["kl"] = {**KL[plain], **through, "coef": coef, "apply": "loss"}
    if not r.told("algorithm.use_kl_in_reward", "kl.apply"):
        return
    control: Any = r.told("algorithm.kl_ctrl.kl_coef", "kl.coef")
    if r.told("algorithm.kl_ctrl.type", "kl.coef") == "adaptive":
        horizon, target = r.told("algorithm.kl_ctrl.horizon", "kl.coef.horizon"), r.told("algorithm.kl_ctrl.target_kl", "kl.coef.target")
        control = {"use": "adaptive-kl", "kl_coef": control, "horizon": horizon, "target": target}
    entry = {**KL[str(r.told("algorithm.kl_penalty", "kl.use"))], "coef": control, "apply": "reward"}
    r.recipe["kl"] = [entry, r.recipe["kl"]] if "kl" in r.recipe else entry


def _correction(r: Reading) -> None:
    chain: list[dict[str, Any]] = []
    start = "algorithm.rollout_correction."
    if rejects := r.told(start + "rollout_rs", "correction"):
        chain += [_rejecting(r, start, rule) for rule in str(rejects).split(",")]
    if level := r.told(start + "rollout_is", "correction.level"):
        bound = r.told(start + "rollout_is_threshold", "correction.cap")
        if isinstance(bound, str) and "_" in bound:
            lower, upper = map(float, bound.split("_"))
            chain.append({"use": "masked-is", "level": level, "lower": lower, "upper": upper, "denominator": "original"})
        else:
            chain.append({"use": "truncated-is", "level": level, "cap": float(bound)})
    if chain:
        r.recipe["correction"] = chain if len(chain) > 1 else chain[0]


def _rejecting(r: Reading, start: str, rule: str) -> dict[str, Any]:
    agg, _, kind = rule.strip().rpartition("_")
    bound = str(r.told(start + "rollout_rs_threshold", "correction.upper"))
    made: dict[str, Any] = {"use": f"reject-{kind}", "agg": agg.removeprefix("seq_")}
    if kind != "k1":
        return {**made, "upper": float(bound), "denominator": "kept"}
    lower, upper = map(float, bound.split("_")) if "_" in bound else (1 / float(bound), float(bound))
    return {**made, "lower": 1 / upper, "upper": 1 / lower, "denominator": "kept"}  # its k1 bounds the inverse ratio


def _reward(r: Reading) -> None:
    start = "reward_model.overlong_buffer."
    if r.told(start + "enable", "reward"):
        longest = r.told("data.max_response_length", "reward.max_resp_len")
        r.recipe["reward"] = {
            "use": "overlong", "max_resp_len": longest, "overlong_buffer_len": r.told(start + "len", "reward.overlong_buffer_len"),
            "penalty_factor": r.told(start + "penalty_factor", "reward.penalty_factor"), "bounded": False,
        }  # fmt: skip
    if r.told("algorithm.filter_groups.enable", "filter"):
        metric = r.get("algorithm.filter_groups.metric")
        same = metric in ("seq_reward", "seq_final_reward", "reward")
        why = "" if same else "here the filter sees rewards after their terms, there the raw metric"
        r.told("algorithm.filter_groups.metric", "filter", fate="mapped" if same else APPROXIMATED, reason=why)
        r.recipe["filter"] = {"use": "group-spread", "by": "std", "tolerance": 0}


def _aggregation(r: Reading) -> Any:
    mode = r.told(ACTOR + "loss_agg_mode", "aggregation")
    if r.recipe.get("policy_loss", {}) and r.get(ACTOR + "policy_loss.loss_mode") in ("sapo", "geo_mean"):
        r.rows = [row for row in r.rows if row.key != ACTOR + "loss_agg_mode"]
        r.note(ACTOR + "loss_agg_mode", DROPPED, "aggregation", "this loss mode always takes the mean over sequences there")
        return "seq-mean-token-mean"
    if mode != "seq-mean-token-sum-norm":
        return mode
    factor = r.told(ACTOR + "loss_scale_factor", "aggregation.loss_scale_factor")
    if factor is None:
        factor = r.told(
            "data.max_response_length",
            "aggregation.loss_scale_factor",
            fate=APPROXIMATED,
            reason="there the padded width of each micro-batch divides, which is at most this",
        )
    if factor is None:
        raise IntegrationError("seq-mean-token-sum-norm: neither actor.loss_scale_factor nor data.max_response_length is said.")
    return {"use": mode, "loss_scale_factor": factor}
