"""OpenRLHF's command line as a recipe. Its defaults are those of 0.11.2; names with underscores are those of 0.8 to 0.9."""

from collections.abc import Mapping
from typing import Any

from ...registry import nearest
from ..gate import IntegrationError
from .mapping import APPROXIMATED, DROPPED, Reading

ADVANTAGE, KL, IS = "algo.advantage.", "algo.kl.", "algo.advantage.is_correction_"
DEFAULTS: Mapping[str, Any] = {
    ADVANTAGE + "estimator": "gae", ADVANTAGE + "gamma": 1.0, ADVANTAGE + "lambd": 1.0, ADVANTAGE + "no_std_norm": False,
    KL + "estimator": "k1", KL + "init_coef": 0.01, KL + "use_loss": False, KL + "target": None, KL + "horizon": 10000,
    KL + "unbiased_gradient": False, "actor.policy_loss_type": "ppo", "actor.eps_clip": 0.2, "actor.eps_clip_low_high": None,
    "actor.dual_clip": None, "actor.entropy_coef": None, "critic.value_clip": 0.5, "reward.clip_range": [-10, 10],
    "reward.overlong_buffer_len": None, "reward.overlong_penalty_factor": 1.0, "reward.stop_properly_penalty_coef": None,
    "rollout.max_new_tokens": None, "data.max_len": 2048, "algo.dynamic_filtering_enable": False, "algo.dynamic_filtering_range": [0, 1],
    IS + "level": "off", IS + "mode": "mask", IS + "gating": "ratio", IS + "threshold": [0.5, 5.0],
    IS + "enable": False, IS + "type": "tis",
}  # fmt: skip
OLD: Mapping[str, str] = {
    "advantage_estimator": ADVANTAGE + "estimator", "gamma": ADVANTAGE + "gamma", "lambd": ADVANTAGE + "lambd",
    "no_advantage_std_norm": ADVANTAGE + "no_std_norm", "kl_estimator": KL + "estimator", "init_kl_coef": KL + "init_coef",
    "use_kl_loss": KL + "use_loss", "kl_target": KL + "target", "kl_horizon": KL + "horizon", "policy_loss_type": "actor.policy_loss_type",
    "eps_clip": "actor.eps_clip", "eps_clip_low_high": "actor.eps_clip_low_high", "dual_clip": "actor.dual_clip",
    "entropy_loss_coef": "actor.entropy_coef", "value_clip": "critic.value_clip", "reward_clip_range": "reward.clip_range",
    "overlong_buffer_len": "reward.overlong_buffer_len", "overlong_penalty_factor": "reward.overlong_penalty_factor",
    "stop_properly_penalty_coef": "reward.stop_properly_penalty_coef", "generate_max_len": "rollout.max_new_tokens",
    "dynamic_filtering": "algo.dynamic_filtering_enable", "dynamic_filtering_reward_range": "algo.dynamic_filtering_range",
    "enable_vllm_is_correction": IS + "enable", "vllm_is_correction_type": IS + "type", "vllm_is_truncated_threshold": IS + "threshold",
}  # fmt: skip
ESTIMATORS: Mapping[str, Any] = {
    "group_norm": {"use": "grpo", "epsilon": 1e-9}, "dr_grpo": {"use": "grpo", "scale": "none"}, "rloo": "rloo",
    "flash_reinforce": "reinforce-batch-mean",
}  # fmt: skip
TYPES = {"tis": ("token", "clip"), "icepop": ("token", "mask"), "seq-mask-tis": ("seq", "mask")}
REASONS = {
    "train.": "the trainer's, not the loss's", "data.": "the data's", "ds.": "how the model is spread", "vllm.": "the sampler's",
    "rollout.": "the sampler's", "ckpt.": "the trainer's, not the loss's", "logger.": "where metrics go", "eval.": "the evaluation's",
    "ref.": "how the reference is run", "reward.": "where rewards come from", "actor.adam.": "the optimizer's", "actor.lr_": "the optimizer's",
    "actor.": "how the model is run", "critic.": "how the critic is run",
}  # fmt: skip


def read(r: Reading) -> None:
    """Fill the recipe of a reading."""
    _rename(r)
    _reward(r)
    _advantage(r)
    kind = str(r.told("actor.policy_loss_type", "policy_loss.use"))
    r.recipe["policy_loss"] = _policy(r, kind)
    _kl(r)
    if entropy := r.told("actor.entropy_coef", "entropy.coef"):
        r.recipe["entropy"] = {"coef": entropy, "aggregation": "token-mean"}
    _correction(r, kind)
    r.recipe["aggregation"] = "seq-mean-token-mean" if kind == "gspo" else "token-mean"
    r.finish(REASONS)


def _rename(r: Reading) -> None:
    """Give keys their names of 0.11; one that is said by both of its names raises ``IntegrationError``."""
    for old, new in OLD.items():
        if old in r.values and new in r.values:
            raise IntegrationError(f"{old} and {new} are one setting, said twice.")
    single = r.values.get("vllm_is_truncated_threshold")
    r.values = {OLD.get(key, key): value for key, value in r.values.items()}
    if isinstance(single, int | float):
        r.values[IS + "threshold"] = [0.0, single]  # one number was the cap alone
    if r.values.get("use_icepop"):
        r.values[IS + "type"] = "icepop"
        r.note("use_icepop", "mapped", "correction", "")


def _pair(r: Reading, key: str, here: str) -> tuple[float, float]:
    value = r.told(key, here)
    if not (isinstance(value, list | tuple) and len(value) == 2):
        raise IntegrationError(f"{key}: {value!r} is not two numbers, the lower and the upper.")
    return float(value[0]), float(value[1])


# ── rewards and advantages ───────────────────────────────────────────────────────────────────────────────────────────


def _reward(r: Reading) -> None:
    chain: list[dict[str, Any]] = []
    if (buffer := r.told("reward.overlong_buffer_len", "reward.overlong_buffer_len")) is not None:
        longest = r.told("rollout.max_new_tokens", "reward.max_resp_len") or r.told("data.max_len", "reward.max_resp_len")
        factor = r.told("reward.overlong_penalty_factor", "reward.penalty_factor")
        chain.append({"use": "overlong", "max_resp_len": longest, "overlong_buffer_len": int(buffer), "penalty_factor": factor})
    if (cut := r.told("reward.stop_properly_penalty_coef", "reward.penalty_coef")) is not None:
        chain.append({"use": "stop-properly", "penalty_coef": cut})
    low, high = _pair(r, "reward.clip_range", "reward.reward_clip_range")
    if r.get(ADVANTAGE + "estimator") in ("gae", "reinforce"):
        chain.append({"use": "clip-rewards", "reward_clip_range": [low, high]})
    else:
        r.rows = [row for row in r.rows if row.key != "reward.clip_range"]
        r.note("reward.clip_range", DROPPED, "", "there it bounds a reward less its baseline, which nothing does here")
    if chain:
        r.recipe["reward"] = chain if len(chain) > 1 else chain[0]
    if r.told("algo.dynamic_filtering_enable", "filter"):
        within = _pair(r, "algo.dynamic_filtering_range", "filter.reward_range")
        r.recipe["filter"] = {"use": "group-mean-bounds", "reward_range": list(within)}


def _advantage(r: Reading) -> None:
    name = str(r.told(ADVANTAGE + "estimator", "advantage.use"))
    paid = bool(r.get(KL + "init_coef")) and not r.get(KL + "use_loss")
    normal: dict[str, Any] = {"use": "batch-normalise"}
    if name in ("gae", "reinforce", "reinforce_baseline") and r.told(ADVANTAGE + "no_std_norm", "advantage.1.std_norm"):
        normal["std_norm"] = False
        if name == "reinforce":
            r.note(ADVANTAGE + "no_std_norm", APPROXIMATED, "advantage", "here reinforce-plus-plus divides by the deviation all the same")
    if name == "gae":
        gamma, lam = r.told(ADVANTAGE + "gamma", "advantage.0.gamma"), r.told(ADVANTAGE + "lambd", "advantage.0.lam")
        r.recipe["advantage"] = [{"use": "gae", "gamma": gamma, "lam": lam}, normal]
        r.recipe["value_loss"] = {"use": "clipped-mse", "cliprange_value": r.told("critic.value_clip", "value_loss.cliprange_value")}
    elif name == "reinforce":  # whitened, and then by the biased deviation: the first scale is gone again
        r.recipe["advantage"] = [{"use": "reinforce-plus-plus", "gamma": r.told(ADVANTAGE + "gamma", "advantage.0.gamma")}, normal]
    elif name == "reinforce_baseline":
        r.recipe["advantage"] = [{"use": "grpo", "scale": "none"}, normal]
        if r.told(ADVANTAGE + "gamma", "advantage") != 1:
            r.note(ADVANTAGE + "gamma", APPROXIMATED, "advantage", "here a baseline of the group knows no discount")
    elif name in ESTIMATORS:
        r.recipe["advantage"] = ESTIMATORS[name]
    else:
        known = ("gae", "reinforce", "reinforce_baseline", *ESTIMATORS)
        raise IntegrationError(f"{ADVANTAGE}estimator: {name!r} has no counterpart here.{nearest(name, known)}")
    if paid and name not in ("gae", "reinforce"):
        r.note(ADVANTAGE + "estimator", APPROXIMATED, "advantage", "there the KL to come is taken from each token, here from the reward")


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _policy(r: Reading, kind: str) -> dict[str, Any]:
    if kind not in ("ppo", "gspo"):
        raise IntegrationError(f"actor.policy_loss_type: {kind!r} is none of OpenRLHF's: ppo and gspo.")
    if r.get("actor.eps_clip_low_high") is not None:
        low, high = _pair(r, "actor.eps_clip_low_high", "policy_loss.clip_ratio_low, clip_ratio_high")
    else:
        low = high = r.told("actor.eps_clip", "policy_loss.clip_ratio_low, clip_ratio_high")
    clip = {"clip_ratio_low": low, "clip_ratio_high": high}
    if kind == "gspo":
        return {"use": "gspo", **clip, "log_ratio_bound": None}
    if (c := r.told("actor.dual_clip", "policy_loss.clip_ratio_c")) is not None:
        return {"use": "dual-clip", **clip, "clip_ratio_c": c, "log_ratio_bound": 20}
    return {"use": "ppo-clip", **clip, "log_ratio_bound": 20}


def _kl(r: Reading) -> None:
    coef: Any = r.told(KL + "init_coef", "kl.coef")
    if not coef:
        return
    use, loss = str(r.told(KL + "estimator", "kl.use")), r.told(KL + "use_loss", "kl.apply")
    if use not in ("k1", "k2", "k3"):
        raise IntegrationError(f"{KL}estimator: {use!r} is none of OpenRLHF's: k1, k2 and k3.")
    if (target := r.told(KL + "target", "kl.coef.target")) is not None:
        coef = {"use": "adaptive-kl", "kl_coef": coef, "target": target, "horizon": r.told(KL + "horizon", "kl.coef.horizon")}
    bound: dict[str, Any] = {} if use == "k3" else {"log_ratio_bound": None}
    if loss and r.told(KL + "unbiased_gradient", "kl.gradient"):
        bound["gradient"] = "unbiased"
    where = {"apply": "loss", "aggregation": "token-mean"} if loss else {"apply": "reward"}
    r.recipe["kl"] = {"use": use, "coef": coef, "cap": 10, **bound, **where}


def _correction(r: Reading, kind: str) -> None:
    level, mode = r.get(IS + "level"), r.get(IS + "mode")
    if r.get(IS + "enable"):  # 0.9 and 0.10
        r.told(IS + "enable", "correction")
        if (said := str(r.told(IS + "type", "correction.use"))) not in TYPES:
            raise IntegrationError(f"{IS}type: {said!r} is none of OpenRLHF's.{nearest(said, TYPES)}")
        level, mode = TYPES[said]
    else:
        r.told(IS + "level", "correction.agg")
    if level == "off":
        return
    gating = r.get(IS + "gating")
    if kind == "gspo":
        r.note(IS + "level", APPROXIMATED, "rollout.bypass", "there nothing is weighed: the ratio is to the sampler. In lossary's trainer too, "
               "by bypass; elsewhere give the sampler's scores as old_log_prob")  # fmt: skip
        r.recipe["rollout"] = {"bypass": True}
        return
    if level not in ("token", "seq") or (level == "seq" and mode == "clip"):
        raise IntegrationError(f"{IS}level: {level!r} with mode {mode!r} has no counterpart here.")
    r.told(IS + "mode", "correction.use")
    low, high = _pair(r, IS + "threshold", "correction's bounds")
    if mode == "clip":
        r.recipe["correction"] = {"use": "truncated-is", "floor": max(low, 0.0), "cap": high}
        return
    r.told(IS + "gating", "correction.use")
    if level == "token" and gating == "ratio":
        r.recipe["correction"] = {"use": "icepop", "lower": max(low, 0.0), "upper": high, "denominator": "original"}
        return
    agg = {"agg": "token" if level == "token" else "mean", "denominator": "original"}
    gates: Mapping[str, dict[str, Any]] = {
        "ratio": {"use": "reject-k1", "lower": low if low > 0 else None, "upper": high},
        "binary_kl": {"use": "reject-binary-kl", "upper": high},
        "tv": {"use": "reject-probability", "lower": None, "upper": high, "absolute": True},
    }
    if gating not in gates:
        raise IntegrationError(f"{IS}gating: {gating!r} is none of OpenRLHF's.{nearest(str(gating), gates)}")
    r.recipe["correction"] = [{**gates[str(gating)], **agg}, {"use": "truncated-is", "cap": None}]
