"""Records of aggregations, value losses and coefficients: what ours gives beside theirs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from golden.records import COMPONENTS, Pairs, Record, call, inputs, outputs, totals_of
from torch import Tensor

from lossary.batch import Batch
from lossary.registry import Measured

# ── aggregations and value losses ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Weighing:
    """An aggregation, the denominators that a framework takes instead of ours, and the factor it adds for its host."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    empty: str = "drop"
    times: float = 1.0


def weighing(r: Record, width: int) -> Weighing:
    _, framework, *mode = r["item"].split("/")
    h = r["hyper"]
    host = h.get("dp_size", 1)
    totals = {a: float(h[b]) for a, b in (("tokens", "batch_num_tokens"), ("sequences", "global_batch_size")) if b in h}
    if framework == "verl":
        norm = {"loss_scale_factor": h["loss_scale_factor"] or width} if h["mode"].endswith("norm") else {}
        return Weighing(h["mode"], norm, totals, times=host)
    if framework == "openrlhf":
        return Weighing("token-mean" if h["token_level_loss"] else "seq-mean-token-mean", {}, totals, times=host)
    if framework == "roll":
        totals = {"sequences": float(h["global_valid_samples"])} if "global_valid_samples" in h else {}  # left alone it counts all rows
        if mode[0].endswith("norm"):  # divides by the width only, not by the sequences
            return Weighing("constant-divisor", {"divisor": width})
        power = {"seq-mean-token-mean": 1.0, "seq-mean-token-sum": 0.0}.get(mode[0])
        if power is not None:
            return Weighing("length-power", {"exponent": power}, totals, empty="count")
        return Weighing(mode[0], {}, totals, empty="count")
    if framework == "skyrl":
        name = {"token_mean_legacy": "token-mean", "sequence_mean": "seq-mean-token-mean", "prompt_mean": "group-mean"}.get(mode[0])
        norm = {"loss_scale_factor": h["max_seq_len"]} if mode[0].endswith("norm") else {}
        return Weighing(name or mode[0].replace("_", "-"), norm, empty="count")
    if framework == "slime":
        if h["calculate_per_token_loss"]:
            return Weighing("token-sum")
        return Weighing("seq-mean-token-mean" if h["sample_denoms"] is None else "rollout-mean", {}, {"sequences": 1.0})
    if framework == "trl":
        accumulated = h["gradient_accumulation_steps"]
        dapo = h["num_items_in_batch"] / h["num_processes"] * accumulated / h["steps_per_generation"]
        return {
            "grpo": Weighing("seq-mean-token-mean", empty="count", times=1 / accumulated),
            "bnpo": Weighing("token-mean", times=1 / accumulated),
            "dr_grpo": Weighing(
                "seq-mean-token-sum-norm", {"loss_scale_factor": h["max_completion_length"]}, empty="count", times=1 / accumulated
            ),
            "luspo": Weighing("seq-mean-token-sum", empty="count", times=1 / accumulated),
            "dapo": Weighing("token-mean", {}, {"tokens": dapo}),
        }[h["loss_type"]]
    assert framework == "tunix"
    return {
        "token-mean": Weighing("token-mean"),
        "sequence-mean-token-mean": Weighing("seq-mean-token-mean"),
        "sequence-mean-token-scale": Weighing("seq-mean-token-sum-norm", {"loss_scale_factor": h.get("norm", width)}),
        "seq-mean-token-sum": Weighing("seq-mean-token-sum"),
        "sequence-mean-token-sum-norm": Weighing("constant-divisor", {"divisor": h["norm"]})
        if "norm" in h
        else Weighing("seq-mean-token-sum"),
    }[h["mode"]]


def weights(w: Weighing, batch: Batch) -> Tensor:
    found: Tensor = call("aggregation", w.name, w.params, batch, totals_of(batch, w.empty, w.totals))
    assert found.dtype == torch.float64
    assert found.shape == batch.sequences.index.shape
    return w.times * found


def agg(r: Record) -> Pairs:
    i, theirs = inputs(r), outputs(r)
    leaf, mask = i["loss_mat"].clone().requires_grad_(), i["mask"]
    borders = r["hyper"].get("prompt_boundaries", [[0, len(mask)]])
    groups = [g for g, (begin, end) in enumerate(borders) for _ in range(begin, end)]
    denominators = r["hyper"].get("sample_denoms")
    split = {"rollout_lengths": torch.tensor(denominators)} if denominators else {}
    batch = Batch.from_padded(mask, log_prob=leaf, group_ids=groups, **split)
    weighted = weights(weighing(r, mask.shape[1]), batch) * batch["log_prob"]
    loss = weighted.sum()
    loss.backward()
    assert leaf.grad is not None
    if "scaled" in theirs:  # SkyRL scales what it averages and then adds up
        return [("loss", loss.detach(), theirs["loss_sum"]), ("scaled", weighted.detach(), theirs["scaled"][mask > 0])]
    return [("loss", loss.detach(), theirs["loss"]), ("grad", leaf.grad, theirs["grad"])]


def value_loss(r: Record) -> Pairs:
    framework, h = r["item"].split("/")[2], r["hyper"]
    i, theirs = inputs(r), outputs(r)
    names = {
        "verl": ("vpreds", "values", "returns", "response_mask", "cliprange_value"),
        "areal": ("value", "old_value", "target_value", "loss_mask", "value_eps_clip"),
        "nemo": ("values", "old_values", "returns", "mask", "cliprange"),
        "openrlhf": ("values", "old_values", "returns", "mask", "clip_eps"),
        "skyrl": ("values", "old_values", "returns", "mask", "value_clip"),
    }[framework]
    leaf, mask = i[names[0]].clone().requires_grad_(), i[names[3]]
    batch = Batch.from_padded(mask, values=leaf, old_values=i[names[1]], returns=i[names[2]])
    w = Weighing("token-mean")
    if framework == "verl":
        w = Weighing(h["loss_agg_mode"])
    if framework == "skyrl":
        w = Weighing("seq-mean-token-mean", empty="count")
    huber = {"delta": h["huber_delta"]} if h.get("loss_fn_type") == "huber" else {}
    per_token, report = call("value_loss", "huber" if huber else "clipped-mse", {"cliprange_value": h[names[4]], **huber}, batch)
    loss = (weights(w, batch) * per_token).sum()
    loss.backward()
    assert leaf.grad is not None
    pairs = [("loss", loss.detach(), theirs["loss"]), ("grad", leaf.grad, theirs["grad"])]
    if "clipfrac" in theirs:
        pairs.append(("clipfrac", report["vf_clipfrac"].x.double().mean(), theirs["clipfrac"]))
    return pairs


def likelihood(r: Record) -> Pairs:
    """prime-rl's cross entropy, added up."""
    i, theirs = inputs(r), outputs(r)
    mask = i["loss_mask"]
    leaf = i["trainer_logprobs"].clone().requires_grad_()
    batch = Batch.from_padded(mask, log_prob=leaf)
    loss = (weights(Weighing("token-sum"), batch) * call("auxiliary_loss", "sft", {}, batch)).sum()
    loss.backward()
    assert leaf.grad is not None
    return [("loss", loss.detach(), theirs["loss_sum"]), ("grad", leaf.grad, theirs["grad"].reshape(mask.shape))]


def controller(r: Record) -> Pairs:
    h, number = r["hyper"], lambda x: torch.tensor(float(x), dtype=torch.float64)
    c = COMPONENTS["coefficient", "adaptive-kl"]
    params = c.params.model_validate({k: h[k] for k in ("init", "target", "horizon")}).model_dump()
    assert c.init is not None
    state, nothing = c.init(**params), number(0)
    coef, state = c.function(state, Measured(nothing, nothing, nothing), **params)
    assert coef == h["init"]  # before the first step nothing was measured
    seen = []
    for measured in r["inputs"]["current_kl_sequence"]:
        coef, state = c.function(state, Measured(nothing, number(measured), number(h["n_steps"])), **params)
        seen.append(coef)
    assert all(x.dtype == torch.float64 for x in seen)
    return [("coef", torch.stack(seen), torch.tensor(r["outputs"]["coef_after_each"], dtype=torch.float64))]
