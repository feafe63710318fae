"""A TRL ``GRPOConfig`` as a recipe. Its defaults are those of 1.16.0."""

from collections.abc import Mapping
from typing import Any

from ..gate import IntegrationError
from .mapping import APPROXIMATED, DROPPED, Reading

DEFAULTS: Mapping[str, Any] = {
    "loss_type": "dapo", "epsilon": 0.2, "epsilon_high": None, "delta": None, "beta": 0.0, "scale_rewards": "group",
    "importance_sampling_level": "token", "use_bias_correction_kl": True, "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "max_completion_length": 512, "entropy_coef": 0.0,
    "use_adaptive_entropy": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_vllm": False,
    "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask", "vllm_importance_sampling_clip_max": 3.0,
    "vllm_importance_sampling_clip_min": None, "mask_truncated_completions": False, "multi_objective_aggregation": "sum_then_normalize",
    "num_iterations": 1,
}  # fmt: skip
AGGREGATIONS = {
    "grpo": "seq-mean-token-mean", "sapo": "seq-mean-token-mean", "luspo": "seq-mean-token-sum", "dr_grpo": "seq-mean-token-sum-norm",
    "dapo": "token-mean", "bnpo": "token-mean", "cispo": "token-mean", "vespo": "token-mean",
}  # fmt: skip
FREE = {"log_ratio_bound": None}


def read(r: Reading) -> None:
    """Fill the recipe of a reading."""
    kind = str(r.told("loss_type", "policy_loss.use"))
    if kind not in AGGREGATIONS:
        raise IntegrationError(f"loss_type: {kind!r} is none of TRL 1.16.")
    r.recipe["advantage"] = _advantage(r)
    r.recipe["policy_loss"] = _policy(r, kind)
    _kl(r)
    _entropy(r)
    _correction(r, kind)
    r.recipe["aggregation"] = AGGREGATIONS[kind]
    if kind == "bnpo":
        r.rows = [row for row in r.rows if row.key != "loss_type"]
        r.note("loss_type", APPROXIMATED, "aggregation", "its mean is over the tokens of a micro-batch, here over the step's")
    if kind == "dr_grpo":
        longest = r.told("max_completion_length", "aggregation.loss_scale_factor")
        r.recipe["aggregation"] = {"use": "seq-mean-token-sum-norm", "loss_scale_factor": longest}
    r.recipe["empty"] = "count"  # rows without a token stand in its means
    r.finish({"vllm_": "the sampler's", "learning_rate": "the optimizer's", "per_device": "how a step is cut"})


def _advantage(r: Reading) -> dict[str, Any]:
    if r.told("multi_objective_aggregation", "advantage.use") == "normalize_then_sum":
        return {"use": "gdpo", "over": "sequences", "epsilon": 1e-4, "step_epsilon": 1e-4}
    scale = {"group": "group-std", "batch": "batch-std", "none": "none", True: "group-std", False: "none"}
    return {"use": "grpo", "epsilon": 1e-4, "scale": scale[r.told("scale_rewards", "advantage.scale")]}


def _policy(r: Reading, kind: str) -> dict[str, Any]:
    if kind == "cispo":
        high = r.told("epsilon_high", "policy_loss.imp_ratio_cap")
        return {"use": "cispo", "imp_ratio_cap": r.told("epsilon", "policy_loss.imp_ratio_cap") if high is None else high, **FREE}
    if kind == "sapo":
        taus = {f"tau_{s}": r.told(f"sapo_temperature_{s}", f"policy_loss.tau_{s}") for s in ("pos", "neg")}
        return {"use": "sapo", **taus, **FREE}
    if kind == "vespo":
        names = [f"vespo_{what}_{sign}" for what in ("k", "lambda") for sign in ("pos", "neg")]
        return {"use": "vespo", **{name: r.told(name, f"policy_loss.{name}") for name in names}}
    low, high = r.told("epsilon", "policy_loss.clip_ratio_low"), r.told("epsilon_high", "policy_loss.clip_ratio_high")
    clip = {"clip_ratio_low": low, "clip_ratio_high": low if high is None else high, **FREE}
    delta, level = r.told("delta", "policy_loss.delta"), r.told("importance_sampling_level", "policy_loss.use")
    share = r.told("top_entropy_quantile", "policy_loss.top_entropy_quantile")
    if sum((delta is not None, level == "sequence", share < 1)) > 1:
        raise IntegrationError("delta, importance_sampling_level='sequence' and top_entropy_quantile: no loss here joins two of them.")
    if share < 1:
        return {"use": "high-entropy", "top_entropy_quantile": share, **clip}
    if delta is not None:
        return {"use": "two-sided-delta", "delta": delta, **clip}
    if level == "sequence":
        return {"use": "luspo" if kind == "luspo" else "gspo", **clip}
    if kind == "luspo":
        r.note("importance_sampling_level", APPROXIMATED, "policy_loss.use", "luspo without sequence level is a clip summed over tokens")
    return {"use": "grpo" if kind == "grpo" else "ppo-clip", **clip}


def _kl(r: Reading) -> None:
    if beta := r.told("beta", "kl.coef"):
        weighted = r.told("use_bias_correction_kl", "kl.use")
        sequence = r.get("importance_sampling_level") == "sequence"
        kind = ("importance-sequence" if sequence else "k3-importance") if weighted else "k3"
        r.recipe["kl"] = {"use": kind, "coef": beta, **FREE, **({"importance_cap": None} if weighted else {})}


def _entropy(r: Reading) -> None:
    coef = r.told("entropy_coef", "entropy.coef")
    if r.told("use_adaptive_entropy", "entropy.coef"):
        r.note("use_adaptive_entropy", APPROXIMATED, "entropy.coef", "its own bounds and target are the defaults here; check them")
        coef = {"use": "adaptive-entropy", "init": coef}
    if coef:
        r.recipe["entropy"] = {"coef": coef, "aggregation": "token-mean"}


def _correction(r: Reading, kind: str) -> None:
    chain: list[dict[str, Any]] = []
    if (threshold := r.told("off_policy_mask_threshold", "correction.opsm_delta")) is not None:
        chain.append({"use": "off-policy-sequence", "opsm_delta": threshold, "denominator": "original"})
    if r.told("mask_truncated_completions", "correction"):
        chain.append({"use": "drop-truncated", "denominator": "original"})
        r.note("mask_truncated_completions", APPROXIMATED, "correction", "there such sequences leave the token count too")
    if r.get("use_vllm") and r.get("vllm_importance_sampling_correction") and kind != "vespo":
        for key in ("use_vllm", "vllm_importance_sampling_correction"):
            r.told(key, "correction")
        level, _, how = str(r.told("vllm_importance_sampling_mode", "correction.use")).rpartition("_")
        top, floor = (
            r.told("vllm_importance_sampling_clip_max", "correction.upper"),
            r.told("vllm_importance_sampling_clip_min", "correction.lower"),
        )
        if how == "mask":
            chain.append({"use": "masked-is", "level": level, "lower": floor, "upper": top, **FREE, "denominator": "original"})
            if r.get("beta"):
                r.note("vllm_importance_sampling_mode", APPROXIMATED, "correction", "the KL of masked sequences stays in TRL's loss")
        else:
            chain.append({"use": "truncated-is", "level": level, "cap": top, **({} if floor is None else {"floor": floor}), **FREE})
    elif "vllm_importance_sampling_mode" in r.values:
        r.note("vllm_importance_sampling_mode", DROPPED, "", "TRL corrects only where vLLM samples")
    if chain:
        r.recipe["correction"] = chain if len(chain) > 1 else chain[0]
