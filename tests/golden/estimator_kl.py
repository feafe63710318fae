"""Records of KL estimates and of the controllers of coefficients: what ours gives beside theirs."""

from collections.abc import Mapping
from typing import Any

import torch
from golden.records import COMPONENTS, Pairs, Record, call, inputs, outputs
from torch import Tensor

from lossary.batch import Batch
from lossary.registry import Measured

NAMES = {"kl": "k1", "mse": "k2", "mse_kl": "k2", "low_var_kl": "k3"}


def bounds(framework: str, said: str, name: str, h: Mapping[str, Any]) -> Mapping[str, float | None]:
    """Return what a framework clamps: the log-ratio before, the estimate after."""
    k3 = name == "k3"
    bound, cap = {
        "verl": (20.0, 10.0) if k3 else (None, None),
        "skyrl": (20.0, 10.0) if k3 else (None, None),
        "openrlhf": (20.0 if k3 else None, 10.0),
        "areal": (20.0 if k3 else None, 10.0),
        "roll": (None, 10.0 if k3 else None),
        "slime": (None, 10.0 if said == "low_var_kl" else None),
        "tunix": (None, h.get("clamp_value")),
        "trl": (None, None),
        "nemo": (h.get("input_clamp"), h.get("output_clamp")),
    }[framework]
    return {"log_ratio_bound": bound, "cap": cap}


def gradient(framework: str, item: list[str], h: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return whose gradient a framework takes."""
    uncapped = {"gradient": "importance-token", "importance_cap": None}
    if item[-1].endswith("+"):
        return {"gradient": "straight-through"}
    if "unbiased" in item:
        return {"gradient": "unbiased", "importance_cap": 10.0}
    if "importance_ratio" in item or h.get("use_bias_correction_kl"):
        return uncapped
    if framework == "nemo":
        return {
            "none": {"gradient": "own"},
            "on_policy_trick": {**uncapped, "anchor": "current"},
            "vs_rollout": {**uncapped, "anchor": "rollout"},
        }[h["importance_weights"]]
    return {"gradient": "own"}


def kl(r: Record) -> Pairs:
    _, framework, *item = r["item"].split("/")
    h = r["hyper"]
    said = h.get("kind", h.get("method", "k3")).removesuffix("+")
    name = NAMES.get(said, said)
    params: dict[str, Any] = {**bounds(framework, said, name, h), **gradient(framework, item, h)}
    if params["gradient"] == "importance-token" and h.get("importance_sampling_level") == "sequence":
        params = {k: v for k, v in params.items() if k != "gradient"} | {"estimate": name}
        name = "importance-sequence"
    i, theirs = inputs(r), outputs(r)
    mask = i["mask"] if "mask" in i else theirs["mask"]
    leaf = i["log_probs"].clone().requires_grad_()
    named = {"old_log_probs": "old_log_prob", "log_probs_old": "old_log_prob", "rollout_log_probs": "rollout_log_prob"}
    sampled = {ours: i[theirs] for theirs, ours in named.items() if theirs in i}
    batch = Batch.from_padded(mask, log_prob=leaf, ref_log_prob=i["ref_log_probs"], **sampled)
    ours = call("kl", name, params, batch)
    ours.sum().backward()
    assert leaf.grad is not None
    on = mask > 0
    return [("kl", ours.detach(), theirs["kl"][on]), ("grad", leaf.grad[on], theirs["grad_of_masked_sum"][on])]


def number(x: Any) -> Tensor:
    return torch.tensor(float(x), dtype=torch.float64)


def adaptive_entropy(r: Record) -> Pairs:
    """TRL's records hold its coefficient; the one that is applied is that where the entropy is low, and 0 elsewhere."""
    h = r["hyper"]
    c = COMPONENTS["coefficient", "adaptive-entropy"]
    params = c.params.model_validate({k: h[k] for k in ("init", "target", "delta", "min", "max")}).model_dump()
    assert c.init is not None
    state, nothing = c.init(**params), number(0)
    paid, state = c.function(state, Measured(nothing, nothing, nothing), **params)
    assert paid == 0
    seen = []
    for entropy in r["inputs"]["world_entropy_sequence"]:
        paid, state = c.function(state, Measured(number(-entropy), nothing, number(1)), **params)
        assert paid == (state["coef"] if entropy <= h["target"] else 0)
        seen.append(state["coef"])
    return [("coef", torch.stack(seen), torch.tensor(r["outputs"]["coef_after_each"], dtype=torch.float64))]
