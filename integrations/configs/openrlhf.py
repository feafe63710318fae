"""OpenRLHF's command line as a recipe. Its defaults are those of 0.11.2."""

from collections.abc import Mapping
from typing import Any

from ..gate import IntegrationError
from .mapping import APPROXIMATED, Reading

DEFAULTS: Mapping[str, Any] = {
    "algo.advantage.estimator": "gae", "algo.advantage.gamma": 1.0, "algo.advantage.lambd": 1.0, "algo.kl.estimator": "k1",
    "algo.kl.init_coef": 0.01, "algo.kl.use_loss": False, "actor.policy_loss_type": "ppo", "actor.eps_clip": 0.2, "actor.eps_clip_low_high": None,
    "actor.dual_clip": None, "actor.entropy_coef": None, "critic.value_clip": None,
}  # fmt: skip
ESTIMATORS: Mapping[str, Any] = {
    "group_norm": {"use": "grpo", "epsilon": 1e-9}, "dr_grpo": {"use": "grpo", "scale": "none"}, "rloo": "rloo",
    "reinforce": "reinforce-plus-plus", "reinforce_baseline": "reinforce-plus-plus-baseline",
}  # fmt: skip


def read(r: Reading) -> None:
    """Fill the recipe of a reading."""
    name = str(r.told("algo.advantage.estimator", "advantage.use"))
    if name == "gae":
        gamma, lam = r.told("algo.advantage.gamma", "advantage.0.gamma"), r.told("algo.advantage.lambd", "advantage.0.lam")
        r.recipe["advantage"] = [{"use": "gae", "gamma": gamma, "lam": lam}, "batch-normalise"]
        r.recipe["value_loss"] = {"use": "clipped-mse", "cliprange_value": r.told("critic.value_clip", "value_loss.cliprange_value")}
    elif name in ESTIMATORS:
        r.recipe["advantage"] = ESTIMATORS[name]
        if name in ("reinforce", "reinforce_baseline"):
            r.note("algo.advantage.estimator", APPROXIMATED, "advantage", "there the norm is by the biased deviation")
        elif r.get("algo.kl.init_coef") and not r.get("algo.kl.use_loss"):
            r.note("algo.advantage.estimator", APPROXIMATED, "advantage", "there the KL to come is taken from each token on top")
    else:
        raise IntegrationError(f"algo.advantage.estimator: {name!r} has no counterpart here.")
    both = r.told("actor.eps_clip_low_high", "policy_loss.clip_ratio_low")
    low, high = both or (r.told("actor.eps_clip", "policy_loss.clip_ratio_low"),) * 2
    clip = {"clip_ratio_low": low, "clip_ratio_high": high}
    kind = r.told("actor.policy_loss_type", "policy_loss.use")
    if kind == "gspo":
        r.recipe["policy_loss"] = {"use": "gspo", **clip, "log_ratio_bound": None}
    elif (c := r.told("actor.dual_clip", "policy_loss.clip_ratio_c")) is not None:
        r.recipe["policy_loss"] = {"use": "dual-clip", **clip, "clip_ratio_c": c, "log_ratio_bound": 20}
    else:
        r.recipe["policy_loss"] = {"use": "ppo-clip", **clip, "log_ratio_bound": 20}
    if coef := r.told("algo.kl.init_coef", "kl.coef"):
        use, loss = str(r.told("algo.kl.estimator", "kl.use")), r.told("algo.kl.use_loss", "kl.apply")
        bound = {} if use == "k3" else {"log_ratio_bound": None}
        where = {"apply": "loss", "aggregation": "token-mean"} if loss else {"apply": "reward"}
        r.recipe["kl"] = {"use": use, "coef": coef, "cap": 10, **bound, **where}
    if entropy := r.told("actor.entropy_coef", "entropy.coef"):
        r.recipe["entropy"] = {"coef": entropy, "aggregation": "token-mean"}
    r.recipe["aggregation"] = "seq-mean-token-mean" if kind == "gspo" else "token-mean"
    r.finish({})
