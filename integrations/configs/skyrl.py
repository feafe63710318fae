"""A SkyRL configuration as a recipe. Its defaults are those of 0.3.0."""

from collections.abc import Mapping
from typing import Any

from ..gate import IntegrationError
from .mapping import APPROXIMATED, Reading

TOP = "trainer.algorithm."
DEFAULTS: Mapping[str, Any] = {
    TOP + "advantage_estimator": "grpo", TOP + "grpo_norm_by_std": True, TOP + "gamma": 1.0, TOP + "lambd": 1.0,
    TOP + "policy_loss_type": "regular", TOP + "eps_clip_low": 0.2, TOP + "eps_clip_high": 0.2, TOP + "clip_ratio_c": 3.0,
    TOP + "loss_reduction": "token_mean", TOP + "max_seq_len": None, TOP + "use_kl_loss": True, TOP + "use_kl_in_reward": False,
    TOP + "kl_loss_coef": 0.001, TOP + "kl_estimator_type": "k3", TOP + "use_entropy_loss": False, TOP + "entropy_loss_coef": 0.01,
    TOP + "value_clip": 0.2, TOP + "cispo.cispo_eps_clip_low": 0.0, TOP + "cispo.cispo_eps_clip_high": 5.0, TOP + "sapo.tau_pos": 1.0,
    TOP + "sapo.tau_neg": 1.05, TOP + "off_policy_correction.tis_ratio_type": None, TOP + "off_policy_correction.token_tis_ratio_clip_high": 2.0,
    TOP + "off_policy_correction.sequence_tis_ratio_clip_high": 5.0, TOP + "zero_variance_filter": False, TOP + "zero_variance_filter_tol": 1e-6,
    TOP + "advantage_batch_normalize": False, TOP + "dppo.dppo_type": "binary_tv", TOP + "kl_ctrl.type": "fixed",
    TOP + "kl_ctrl.kl_target": 0.1, TOP + "kl_ctrl.horizon": 10000,
}  # fmt: skip
REDUCTIONS = {
    "token_mean": "token-mean",
    "sequence_mean": "seq-mean-token-mean",
    "prompt_mean": "group-mean",
    "token_mean_legacy": "token-mean",
}
KL: Mapping[str, Mapping[str, Any]] = {
    "k1": {"use": "k1", "log_ratio_bound": None}, "k2": {"use": "k2", "log_ratio_bound": None},
    "abs": {"use": "abs", "log_ratio_bound": None}, "k3": {"use": "k3", "cap": 10},
}  # fmt: skip
ROWS = {"aggregation": "seq-mean-token-mean"}
"""KL and entropy are means over rows there, whatever the loss_reduction."""


def read(r: Reading) -> None:
    """Fill the recipe of a reading."""
    if r.values and not any(key.startswith(TOP) for key in r.values):
        r.values = {TOP + key.removeprefix("algorithm."): value for key, value in r.values.items()}
    _advantage(r)
    r.recipe["policy_loss"] = _policy(r)
    _kl(r)
    if r.told(TOP + "use_entropy_loss", "entropy"):
        r.recipe["entropy"] = {"coef": r.told(TOP + "entropy_loss_coef", "entropy.coef"), **ROWS}
    level = r.told(TOP + "off_policy_correction.tis_ratio_type", "correction.level")
    if level:
        cap = r.told(TOP + f"off_policy_correction.{level}_tis_ratio_clip_high", "correction.cap")
        r.recipe["correction"] = {"use": "truncated-is", "level": level, "cap": cap}
    if r.told(TOP + "zero_variance_filter", "filter"):
        r.note(TOP + "zero_variance_filter", APPROXIMATED, "filter", "there such groups are masked and still count in means; here they go")
        r.recipe["filter"] = {"use": "group-spread", "tolerance": r.told(TOP + "zero_variance_filter_tol", "filter.tolerance")}
    r.recipe["aggregation"] = _aggregation(r)
    r.recipe["empty"] = "count"  # rows without a token stand in its means
    r.finish(
        {"trainer.algorithm.off_policy_correction.": "a mask of tokens or sequences, which is not read yet: say it under 'correction'"}
    )


def _advantage(r: Reading) -> None:
    name = str(r.told(TOP + "advantage_estimator", "advantage.use"))
    if name == "gae":
        gamma, lam = r.told(TOP + "gamma", "advantage.0.gamma"), r.told(TOP + "lambd", "advantage.0.lam")
        r.note(TOP + "advantage_estimator", APPROXIMATED, "advantage", "there it decays through masked tokens and reads their values")
        r.recipe["advantage"] = [{"use": "gae", "gamma": gamma, "lam": lam}, "whiten"]
        r.recipe["value_loss"] = {"use": "clipped-mse", "cliprange_value": r.told(TOP + "value_clip", "value_loss.cliprange_value"), **ROWS}
    elif name == "grpo":
        scaled = r.told(TOP + "grpo_norm_by_std", "advantage.scale")
        r.recipe["advantage"] = {"use": "grpo", "singleton": "reward", **({} if scaled else {"scale": "none"})}
    elif name == "reinforce++":
        r.note(TOP + "advantage_estimator", APPROXIMATED, "advantage", "there the reward is lost before a masked token")
        r.recipe["advantage"] = {"use": "reinforce-plus-plus", "gamma": r.told(TOP + "gamma", "advantage.gamma")}
    elif name in ("rloo", "maxrl"):
        r.recipe["advantage"] = {"use": name, **({"singleton": "reward"} if name == "maxrl" else {})}
    else:
        raise IntegrationError(f"{TOP}advantage_estimator: {name!r} has no counterpart here.")
    if r.told(TOP + "advantage_batch_normalize", "advantage"):
        r.note(TOP + "advantage_batch_normalize", APPROXIMATED, "advantage", "there the mean is over padding too")
        made = r.recipe["advantage"]
        r.recipe["advantage"] = [*(made if isinstance(made, list) else [made]), "batch-normalise"]


def _policy(r: Reading) -> dict[str, Any]:
    kind = str(r.told(TOP + "policy_loss_type", "policy_loss.use"))
    if kind == "cispo":
        bounds = {f"clip_ratio_{s}": r.told(TOP + f"cispo.cispo_eps_clip_{s}", f"policy_loss.clip_ratio_{s}") for s in ("low", "high")}
        return {"use": "cispo", **bounds}
    if kind == "sapo":
        return {"use": "sapo", **{t: r.told(TOP + f"sapo.{t}", f"policy_loss.{t}") for t in ("tau_pos", "tau_neg")}, "log_ratio_bound": 20}
    if kind == "importance_sampling":
        return {"use": "importance-sampling", "log_ratio_bound": None}
    uses = {"regular": "ppo-clip", "dual_clip": "dual-clip", "gspo": "gspo-token", "rollout_is": "rollout-is"}
    if kind not in uses:
        raise IntegrationError(f"{TOP}policy_loss_type: {kind!r} is not read yet; see `lossary find {kind}`.")
    clip = {f"clip_ratio_{s}": r.told(TOP + f"eps_clip_{s}", f"policy_loss.clip_ratio_{s}") for s in ("low", "high")}
    if kind == "rollout_is":
        clip = {f"eps_clip_{s}": x for s, x in zip(("low", "high"), clip.values(), strict=True)}
    if kind == "dual_clip":
        clip["clip_ratio_c"] = r.told(TOP + "clip_ratio_c", "policy_loss.clip_ratio_c")
    return {"use": uses[kind], **clip, "log_ratio_bound": 10 if kind == "gspo" else 20}


def _kl(r: Reading) -> None:
    loss, reward = r.told(TOP + "use_kl_loss", "kl.apply"), r.told(TOP + "use_kl_in_reward", "kl.apply")
    if not loss and not reward:
        return
    coef: Any = r.told(TOP + "kl_loss_coef", "kl.coef")
    kind = KL[str(r.told(TOP + "kl_estimator_type", "kl.use"))]
    if not loss and r.told(TOP + "kl_ctrl.type", "kl.coef") == "adaptive":
        target, horizon = r.told(TOP + "kl_ctrl.kl_target", "kl.coef.target"), r.told(TOP + "kl_ctrl.horizon", "kl.coef.horizon")
        coef = {"use": "adaptive-kl", "kl_coef": coef, "target": target, "horizon": horizon}
    r.recipe["kl"] = {**kind, "coef": coef, "apply": "loss", **ROWS} if loss else {**kind, "coef": coef, "apply": "reward"}


def _aggregation(r: Reading) -> Any:
    mode = str(r.told(TOP + "loss_reduction", "aggregation"))
    if mode == "seq_mean_token_sum_norm":
        return {"use": "seq-mean-token-sum-norm", "loss_scale_factor": r.told(TOP + "max_seq_len", "aggregation.loss_scale_factor")}
    if mode not in REDUCTIONS:
        raise IntegrationError(f"{TOP}loss_reduction: {mode!r} has no counterpart here.")
    if mode == "token_mean_legacy":
        r.note(TOP + "loss_reduction", APPROXIMATED, "aggregation", "there the mean is of each micro-batch")
    return REDUCTIONS[mode]
