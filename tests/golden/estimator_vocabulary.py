"""Records of what needs the whole vocabulary: exact KL, entropy, distillation and critics of bins, beside theirs."""

from collections.abc import Mapping
from typing import Any

import torch
from golden.records import Pairs, Record, Unmapped, call, inputs, outputs
from torch import Tensor

from lossary.batch import Batch
from lossary.numerics import entropy_of, log_prob_of, sum_pi_squared_of

ROLL: Mapping[str, Mapping[str, Any]] = {
    "forward_kl": {"divergence": "forward"},
    "reverse_kl": {"divergence": "reverse"},
    "adaptive_kl": {"divergence": "adaptive"},
    "skewed_forward_kl": {"divergence": "skewed-forward"},
    "skewed_reverse_kl": {"divergence": "skewed-reverse"},
    "js_divergence": {"divergence": "jsd", "beta": 0.5},
}
NEMO = ("forward", "reverse", "mixed")


def component(kind: str, name: str, params: Mapping[str, Any], **columns: Tensor) -> tuple[Tensor, Mapping[str, Any]]:
    """Call a component on ``n`` tokens: ``(loss, report)``."""
    n = next(iter(columns.values())).shape[0]
    found = call(kind, name, params, Batch.from_padded(torch.ones(1, n)), **columns)
    return found if isinstance(found, tuple) else (found, {})


def leaf_of(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()


def grad_of(loss: Tensor, leaf: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), leaf)[0]


def full_kl(r: Record) -> Pairs:
    i, theirs = inputs(r), outputs(r)
    ours, _ = component("kl", "full", {}, logits=i["log_probs"].flatten(0, -2), ref_logits=i["log_probs_base"].flatten(0, -2))
    return [("kl", ours.view_as(theirs["kl"]), theirs["kl"])]


def moments(r: Record) -> Pairs:
    """SkyRL writes 0 where nothing was sampled; ours has no such place."""
    i, theirs = inputs(r), outputs(r)
    on = i["attention_mask"] > 0 if "attention_mask" in i else torch.ones(i["logits"].shape[:-1], dtype=torch.bool)
    leaf = leaf_of(i["logits"])
    found = {"entropy": entropy_of, "sum_pi_squared": sum_pi_squared_of}[next(iter(theirs))](leaf[on])
    pairs = [(k, found.detach(), theirs[k][on]) for k in ("entropy", "sum_pi_squared") if k in theirs]
    return [*pairs, *((k, grad_of(found, leaf), theirs[k]) for k in theirs if k == "grad_of_sum")]


def two_hot(r: Record) -> Pairs:
    """The gradient of a cross-entropy is the prediction less the target, and logits of 0 predict every bin alike.

    rlax adds 1e-5 to the distance of two points, which takes a little from the lower of the two.
    """
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    leaf = torch.zeros_like(theirs["probs"]).requires_grad_()
    params = {"low": h["min_value"], "high": h["max_value"]}
    loss, _ = component("value_loss", "two-hot", params, value_logits=leaf, returns=i["scalar"])
    ours = 1 / h["num_bins"] - grad_of(loss, leaf)
    lower = (ours > 1e-9).long().argmax(1, keepdim=True)
    share = ours.gather(1, lower)
    less = torch.where(share < 1 - 1e-9, share * (1 / (1 + 1e-5 * (h["num_bins"] - 1) / (h["max_value"] - h["min_value"])) - 1), 0.0)
    ours = ours.scatter_add(1, lower, less).scatter_add(1, (lower + 1).clamp(max=h["num_bins"] - 1), -less)
    return [("probs", ours, theirs["probs"])]


def whole(r: Record) -> Pairs:
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    name, framework = r["item"].split("/")[1:]
    if framework == "roll":
        given = {"temperature": h["kd_temperature"], "adaptive_kl_alpha": h["adaptive_kl_alpha"], "skew_lambda": h["skew_lambda"]}
        params = {**given, **ROLL[name]}
    elif h["reduction"] == "batchmean":
        params = {"divergence": "jsd", "beta": h["beta"], "temperature": h["temperature"]}
    else:
        raise Unmapped(r)
    on = i["labels"] != -100 if "labels" in i else torch.ones(i["student_logits"].shape[:-1], dtype=torch.bool)
    leaf = leaf_of(i["student_logits"])
    loss, _ = component("auxiliary_loss", "distill", params, logits=leaf[on], teacher_logits=i["teacher_logits"][on])
    loss = loss.mean() if framework == "trl" else loss.view_as(theirs["loss"])
    grad = theirs["grad" if framework == "trl" else "grad_of_sum"]
    return [("loss", loss.detach(), theirs["loss"]), ("grad", grad_of(loss, leaf), grad)]


def student_topk(r: Record) -> Pairs:
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    leaf = leaf_of(i["student_logits"])
    params = {"topk": h["topk"], "beta": h["alpha"], "others": "tail" if h["add_tail"] else "renormalise"}
    both = {"logits": leaf.flatten(0, -2), "teacher_logits": i["teacher_logits"].flatten(0, -2)}
    loss, _ = component("auxiliary_loss", "distill-student-topk", params, **both)
    return [("loss", loss.detach().view_as(theirs["per_token"]), theirs["per_token"]), ("grad", grad_of(loss, leaf), theirs["grad_of_sum"])]


def teacher_topk(r: Record) -> Pairs:
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    leaf = leaf_of(i["student_logits"])
    if r["item"].endswith("/verl"):
        columns = {"teacher_topk_log_prob": i["teacher_topk_log_probs"], "teacher_topk_ids": i["teacher_topk_ids"].long()}
        params = {"others": "ignore", "log_prob_min_clamp": h["log_prob_min_clamp"]}
        loss, report = component("auxiliary_loss", "distill-topk", params, logits=leaf, **columns)
        final, _ = component("auxiliary_loss", "distill-topk", {**params, "loss_min_clamp": 0.0}, logits=leaf, **columns)
        pairs = [("loss", loss.detach(), theirs["losses"]), ("clamped", final.detach(), theirs["losses_final_clamped_at_zero"])]
        pairs.append(("grad", grad_of(loss, leaf), theirs["grad_of_unclamped_sum"]))
        return [*pairs, *((k, report[k].x.double(), theirs[k]) for k in ("student_mass", "teacher_mass"))]
    ids, on = i["topk_indices"].long(), i["token_mask_with_bos"][:, 1:] > 0
    params = {"divergence": h["kl_type"], "mixed_kl_weight": h["mixed_kl_weight"], "log_infinitesimal": h["log_infinitesimal"]}
    params["others"] = "never" if h["zero_outside_topk"] else "ignore"
    columns = {"teacher_topk_log_prob": log_prob_of(i["teacher_logits"], ids)[on], "teacher_topk_ids": ids[on]}
    loss, _ = component("auxiliary_loss", "distill-topk", params, logits=leaf[on], **columns)
    loss = loss.sum() / (on.sum().double() + 1e-8)
    return [("loss", loss.detach(), theirs["loss"]), ("grad", grad_of(loss, leaf), theirs["grad"])]


def sampled(r: Record) -> Pairs:
    """Forms on the sampled token, for which no logits are needed but those that it was sampled from."""
    form, h, i, theirs = r["item"].split("/")[1], r["hyper"], inputs(r), outputs(r)
    if form == "sdar":
        leaf, on = leaf_of(i["student"]), i["mask"] > 0
        loss, _ = component("auxiliary_loss", "sdar", {"gate_beta": h["gate_beta"]}, log_prob=leaf[on], teacher_log_prob=i["teacher"][on])
        loss = loss.mean()
        return [("loss", loss.detach(), theirs["loss"]), ("grad", grad_of(loss, leaf), theirs["grad"])]
    leaf = leaf_of(i["student_logits"])
    if form == "iw_opd":
        on = i["labels"] != -100
        log_prob = log_prob_of(leaf, i["completion_tokens"], h["temperature"])
        columns = {"teacher_log_prob": i["teacher_actual_logprobs"], "rollout_log_prob": i["rollout_logprobs"]}
        params = {"iw_opd_gamma": h["gamma"], "iw_opd_epsilon": h["epsilon"]}
        loss = call("policy_loss", "iw-opd", params, Batch.from_padded(on, log_prob=log_prob, **columns))[0].mean()
        return [("loss", loss.detach(), theirs["loss"]), ("grad", grad_of(loss, leaf), theirs["grad"])]
    log_prob, teacher = (log_prob_of(x, i["completion_ids"]).flatten() for x in (leaf, i["teacher_logits"]))
    columns = {"log_prob": log_prob, "old_log_prob": log_prob.detach(), "teacher_log_prob": teacher}
    loss, _ = component("policy_loss", "sdpo", {"is_clip": None}, **columns)
    return [("loss", loss.detach().view_as(theirs["per_token"]), theirs["per_token"]), ("grad", grad_of(loss, leaf), theirs["grad_of_sum"])]
