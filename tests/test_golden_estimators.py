"""Estimators, aggregations and value losses against the numbers that other frameworks' own code gave."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lossary import aggregators, algorithms, estimators
from lossary.batch import Batch
from lossary.registry import Component, Level, Measured, Totals, component_of

GOLDEN = json.loads((Path(__file__).parent / "golden" / "estimators.json").read_text())
RECORDS: Mapping[str, Any] = {r["id"]: r for r in GOLDEN["records"]}
COMPONENTS: Mapping[tuple[str, str], Component] = {
    (c.kind.name, c.name): c
    for package in (algorithms, estimators, aggregators)
    for c in map(component_of, package.lossary_components())
    if c is not None
}
REASONS = ("framework-bug", "counts-padding", "reads-hole", "split-dependent", "unclamped")

DELIBERATE: Mapping[str, tuple[str, str]] = {
    "adv/gae/skyrl/1": ("reads-hole", "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them."),
    "adv/gae/skyrl/3": ("reads-hole", "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them."),
    "adv/gae/skyrl/4": ("reads-hole", "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them."),
    "adv/gae/skyrl/5": ("reads-hole", "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them."),
    "adv/gae/skyrl/7": ("reads-hole", "SkyRL's recursion runs through holes and end padding and reads the values there; ours skips them."),
    "adv/gae/openrlhf/5": ("reads-hole", "OpenRLHF's trace decays through a hole as if values of 0 stood in it; ours skips it."),
    "adv/reinforce_plus_plus/skyrl/2": ("reads-hole", "A hole resets SkyRL's return, so earlier turns get no reward; ours skips the hole."),
    "adv/reinforce_plus_plus/skyrl/4": ("reads-hole", "A hole resets SkyRL's return, so earlier turns get no reward; ours skips the hole."),
    "adv/reinforce_plus_plus/skyrl/5": ("reads-hole", "A hole resets SkyRL's return, so earlier turns get no reward; ours skips the hole."),
    "adv/reinforce_plus_plus/slime/3": ("reads-hole", "slime discounts once for each position of a hole; ours only for sampled tokens."),
    "adv/reinforce_plus_plus/slime/5": ("reads-hole", "slime discounts once for each position of a hole; ours only for sampled tokens."),
    "adv/grpo/nemo/0": (
        "framework-bug",
        "NeMo divides by the deviation of the others, which is 0 or nearly so when only this one differs.",
    ),
    "adv/grpo/nemo/4": (
        "framework-bug",
        "NeMo divides by the deviation of the others, which is 0 or nearly so when only this one differs.",
    ),
    "adv/grpo/nemo/12": (
        "framework-bug",
        "NeMo divides by the deviation of the others, which is 0 or nearly so when only this one differs.",
    ),
    "agg/roll/token-mean/": ("framework-bug", "ROLL's token-mean adds up masked positions too; ours has none."),
    "agg/skyrl/token_mean_legacy/": (
        "split-dependent",
        "SkyRL's legacy mean is a mean of micro-batches' means; ours is one mean over the step.",
    ),
    "norm/advantage_batch_normalize/skyrl/": (
        "counts-padding",
        "SkyRL takes the mean over all positions, padding included; ours over tokens.",
    ),
}
"""Records that differ on purpose, by id or beginning of an id: ``(reason, what differs)``."""

Pairs = list[tuple[str, Tensor, Tensor]]
"""``(what, ours, theirs)``."""


# ── reading a record ─────────────────────────────────────────────────────────────────────────────────────────────────


def value(x: Any) -> Any:
    """Decode a tensor or a reference to a fixture; everything else as it is."""
    if isinstance(x, str) and x.startswith("$fx."):
        _, fixture, key = x.split(".")
        return value(GOLDEN["fixtures"][fixture][key])
    if isinstance(x, dict) and "shape" in x:
        if x["dtype"] == "object":
            return x["data"]
        return torch.tensor(x["data"], dtype=torch.float64).reshape(x["shape"])
    if isinstance(x, (float, int)) and not isinstance(x, bool):
        return torch.tensor(float(x), dtype=torch.float64)
    return x


def inputs(r: Mapping[str, Any]) -> dict[str, Any]:
    return {k: value(v) for k, v in r["inputs"].items()}


def outputs(r: Mapping[str, Any]) -> dict[str, Any]:
    found = {k: value(v) for k, v in r["outputs"].items()}
    return {k: torch.tensor(v, dtype=torch.float64) if isinstance(v, list) else v for k, v in found.items()}


def call(kind: str, name: str, params: Mapping[str, Any], batch: Batch, totals: Totals | None = None, **made: Tensor) -> Any:
    """Call a component as the pipeline does: columns by name, hyperparameters checked."""
    c = COMPONENTS[kind, name]
    special = {"sequences": batch.sequences, "totals": totals, **made}
    columns = [
        special[i.name] if i.name in special else batch.column(i.name, i.level) if i.name in batch or not i.optional else None
        for i in c.inputs
    ]
    return c.function(*columns, **c.params.model_validate(params).model_dump())


# ── KL ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

KL_NAMES = {"kl": "k1", "mse": "k2", "mse_kl": "k2", "low_var_kl": "k3"}


def kl(r: Mapping[str, Any]) -> Pairs:
    framework, h = r["item"].split("/")[1], r["hyper"]
    said, plus, _ = h.get("kind", h.get("method", "k3")).partition("+")
    name = KL_NAMES.get(said, said)
    bound, cap = {
        "verl": (20.0, 10.0) if name == "k3" else (None, None),
        "skyrl": (20.0, 10.0) if name == "k3" else (None, None),
        "openrlhf": (20.0 if name == "k3" else None, 10.0),
        "areal": (20.0 if name == "k3" else None, 10.0),
        "roll": (None, 10.0 if name == "k3" else None),
        "slime": (None, 10.0 if said == "low_var_kl" else None),
        "tunix": (None, h.get("clamp_value")),
        "trl": (None, None),
        "nemo": (h.get("input_clamp"), h.get("output_clamp")),
    }[framework]
    through = plus or h.get("importance_weights") == "on_policy_trick"  # a ratio of 1 with a gradient turns that of k3 into that of k2
    i, theirs = inputs(r), outputs(r)
    mask = i["mask"] if "mask" in i else theirs["mask"]
    leaf = i["log_probs"].clone().requires_grad_()
    batch = Batch.from_padded(mask, log_prob=leaf, ref_log_prob=i["ref_log_probs"])
    ours = call("kl", name, {"log_ratio_bound": bound, "cap": cap, "gradient": "straight-through" if through else "own"}, batch)
    ours.sum().backward()
    assert leaf.grad is not None
    on = mask > 0
    return [("kl", ours.detach(), theirs["kl"][on]), ("grad", leaf.grad[on], theirs["grad_of_masked_sum"][on])]


# ── aggregations and value losses ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Weighing:
    """An aggregation, the denominators that a framework takes instead of ours, and the factor it adds for its host."""

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    empty: str = "drop"
    times: float = 1.0


def weighing(r: Mapping[str, Any], width: int) -> Weighing:
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
            return Weighing(mode[0], {"loss_scale_factor": width}, {"sequences": 1.0})
        return Weighing(mode[0], {}, totals, empty="count")
    if framework == "skyrl":
        name = {"token_mean_legacy": "token-mean", "sequence_mean": "seq-mean-token-mean", "prompt_mean": "group-mean"}.get(mode[0])
        norm = {"loss_scale_factor": h["max_seq_len"]} if mode[0].endswith("norm") else {}
        return Weighing(name or mode[0].replace("_", "-"), norm, empty="count")
    if framework == "slime":
        return Weighing("token-sum") if h["calculate_per_token_loss"] else Weighing("seq-mean-token-mean", {}, {"sequences": 1.0})
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
        "sequence-mean-token-sum-norm": Weighing("token-sum", times=1 / h["norm"]) if "norm" in h else Weighing("seq-mean-token-sum"),
    }[h["mode"]]


def weights(w: Weighing, batch: Batch) -> Tensor:
    lengths = batch.sequences.lengths
    counts = {
        "tokens": float(lengths.sum()),
        "sequences": float((lengths > 0).sum()) if w.empty == "drop" else float(len(batch)),
        "groups": float(len(set(batch.groups))) or 1.0,
        **w.totals,
    }
    t = {k: torch.tensor(v, dtype=torch.float64) for k, v in counts.items()}
    found: Tensor = call("aggregation", w.name, w.params, batch, Totals(t["tokens"], t["sequences"], t["groups"], t["tokens"]))
    assert found.dtype == torch.float64
    assert found.shape == batch.sequences.index.shape
    return w.times * found


def agg(r: Mapping[str, Any]) -> Pairs:
    i, theirs = inputs(r), outputs(r)
    leaf, mask = i["loss_mat"].clone().requires_grad_(), i["mask"]
    batch = Batch.from_padded(mask, log_prob=leaf, group_ids=[0, 0, 1, 1])
    weighted = weights(weighing(r, mask.shape[1]), batch) * batch["log_prob"]
    loss = weighted.sum()
    loss.backward()
    assert leaf.grad is not None
    if "scaled" in theirs:  # SkyRL scales what it averages and then adds up
        return [("loss", loss.detach(), theirs["loss_sum"]), ("scaled", weighted.detach(), theirs["scaled"][mask > 0])]
    return [("loss", loss.detach(), theirs["loss"]), ("grad", leaf.grad, theirs["grad"])]


def value_loss(r: Mapping[str, Any]) -> Pairs:
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
    per_token, report = call("value_loss", "clipped-mse", {"cliprange_value": h[names[4]]}, batch)
    loss = (weights(w, batch) * per_token).sum()
    loss.backward()
    assert leaf.grad is not None
    pairs = [("loss", loss.detach(), theirs["loss"]), ("grad", leaf.grad, theirs["grad"])]
    if "clipfrac" in theirs:
        pairs.append(("clipfrac", report["vf_clipfrac"].x.double().mean(), theirs["clipfrac"]))
    return pairs


def controller(r: Mapping[str, Any]) -> Pairs:
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


# ── advantages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def paid(mask: Tensor, rewards: Tensor, how: str, **columns: Any) -> Batch:
    """Return a batch whose ``rewards`` and ``token_rewards`` each hold everything that is paid, as in the pipeline."""
    given = {"token_rewards": rewards} if rewards.dim() == 2 else {"rewards": rewards}
    batch = Batch.from_padded(mask, **given, **columns, masked_rewards=how)
    s = batch.sequences
    sequence = batch["rewards"] if "rewards" in batch else torch.zeros(len(batch), dtype=torch.float64)
    token = batch["token_rewards"] if "token_rewards" in batch else torch.zeros(s.index.shape[0], dtype=torch.float64)
    batch = batch.with_columns(Level.SEQUENCE, rewards=sequence + s.sum(token))
    return batch.with_columns(Level.TOKEN, token_rewards=token + s.place_last(sequence))


def blocks(r: Tensor, n: int | None = None) -> Batch:
    """Return one sequence of one token per reward, in groups that lie side by side."""
    flat = r.flatten()
    size = n or r.shape[1]
    return paid(torch.ones(flat.shape[0], 1), flat, "error", group_ids=torch.arange(flat.shape[0]) // size)


def spread(batch: Batch, x: Tensor) -> Tensor:
    return batch.sequences.spread(x)


def to_go(kl_: Tensor, mask: Tensor) -> Tensor:
    """Return the sum of what is still to come at each sampled token, by the plainest loop."""
    out = torch.zeros_like(kl_)
    for row in range(kl_.shape[0]):
        rest = 0.0
        for t in reversed(range(kl_.shape[1])):
            rest += float(kl_[row, t]) * float(mask[row, t])
            out[row, t] = rest
    return out


def gae(r: Mapping[str, Any]) -> Pairs:
    framework, h = r["item"].split("/")[2], r["hyper"]
    i, theirs = inputs(r), outputs(r)
    params = {
        "gamma": h.get("gamma", h.get("gae_gamma", h.get("discount", 0.99))),
        "lam": next(h[k] for k in ("lam", "lambd", "gae_lambda", "lambda_") if k in h),
    }
    rewards = next((i[k] for k in ("token_level_rewards", "rewards", "r_t") if k in i), torch.zeros(0))
    mask = next((i[k] for k in ("response_mask", "mask", "action_mask") if k in i), torch.ones_like(rewards))
    more: dict[str, Tensor] = {}
    values = i["values"]
    if framework == "rlax":  # one trajectory that ends, so that its last value is never used
        rewards, mask, values = rewards[None], mask[None], values[None, :-1]
        theirs = {k: v[None] for k, v in theirs.items()}
    if framework == "openrlhf":
        rewards = last_of(mask, i["sample_rewards"]) - h["kl_coef"] * i["kl"] * mask
    if framework == "areal":  # what fills the whole width was cut, and its last value stands for the rest
        mask, rewards = theirs["loss_mask_shifted"], theirs["token_rewards"]
        more = {"truncated": (i["attention_mask"].sum(1) == mask.shape[1]).double(), "bootstrap_values": values[:, -1]}
        params["bootstrap"] = "truncated"
        assert more["truncated"].any()
    batch = paid(mask, rewards, "drop", old_values=values, **more)
    ours = dict(call("advantage", "gae", params, batch))
    if framework in ("verl", "tunix", "nemo", "skyrl"):
        ours["advantages"] = call("advantage", "whiten", {}, batch, advantages=ours["advantages"])
    if framework == "openrlhf":
        ours["advantages"] = call("advantage", "whiten", {"unbiased": False}, batch, advantages=ours["advantages"])
    on = mask > 0
    return [(k, ours[k], theirs[k][on]) for k in ("advantages", "returns") if k in theirs]


def last_of(mask: Tensor, x: Tensor) -> Tensor:
    """Put each row's number on the last position of its mask."""
    out = torch.zeros_like(mask)
    for row in range(mask.shape[0]):
        out[row, int(mask[row].nonzero()[-1])] = x[row]
    return out


def padded_groups(r: Mapping[str, Any]) -> Pairs:
    """Records on padded rewards with groups by name: verl and SkyRL, and NeMo and OpenRLHF with one reward per row."""
    _, item, framework, *_ = r["item"].split("/")
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    mask = next(i[k] for k in ("response_mask", "mask", "action_mask") if k in i)
    rewards = next(i[k] for k in ("token_level_rewards", "rewards", "sample_rewards") if k in i)
    ids = i.get(
        "index", i.get("uid", i["prompt_ids"][:, 0].long() if "prompt_ids" in i else torch.arange(8) // h.get("n_samples_per_prompt", 8))
    )
    batch = paid(mask, rewards, "to-sequence", group_ids=ids)  # they add up all rewards, also those at masked positions
    scale = {
        "scale": "group-std" if h.get("norm_adv_by_std_in_grpo", h.get("grpo_norm_by_std", h.get("normalize_rewards", True))) else "none"
    }
    alone = {"singleton": "reward" if framework in ("verl", "skyrl") and item not in ("rloo_vectorized",) else "zero"}
    if item == "rloo" and framework == "skyrl":
        alone = {"singleton": "zero"}
    wanted = theirs["advantages"]
    if framework == "openrlhf":
        wanted = wanted + h["kl_coef"] * to_go(i["kl"], mask)  # the KL is paid token by token on top
        scale = {"scale": "none" if item == "dr_grpo" else "group-std", "epsilon": 1e-9}
    elif item.startswith("grpo"):
        scale = {**scale, "epsilon": h.get("epsilon", h.get("eps"))}
    if item.startswith("rloo") or h.get("use_leave_one_out_baseline"):
        ours = call("advantage", "rloo", alone, batch)
    else:
        ours = call("advantage", "grpo", {**scale, **alone}, batch)
    return [("advantages", spread(batch, ours), wanted[mask > 0])]


def blocked_groups(r: Mapping[str, Any]) -> Pairs:
    """Records on rewards alone, in blocks: TRL, ms-swift, tunix, torchrl, slime, prime-rl, ROLL, AReaL."""
    item, h, i, theirs = r["item"], r["hyper"], inputs(r), outputs(r)
    wanted = next(theirs[k] for k in ("advantages", "y", "rewards") if k in theirs).flatten()
    if "rewards_per_func" in i:
        rewards = (
            theirs["rewards"] if "rewards" in theirs else i["rewards_per_func"] @ torch.tensor(i["reward_weights"], dtype=torch.float64)
        )
        batch = blocks(rewards, h["num_generations"])
    elif "prime" in item:
        batch = blocks(i["rewards"], i["rewards"].shape[0])
    else:
        batch = blocks(i["r"])
    if "rloo" in item or h.get("mean_leave1out"):
        return [("advantages", call("advantage", "rloo", {"singleton": "reward"}, batch), wanted)]
    if item.startswith("norm/"):
        kind = h["norm_std_type"] if "norm_std_type" in h else h["std_level"]
    elif "prime" in item or "drgrpo" in item or item.endswith(("none", "plus_plus_baseline")) or h.get("grpo_std_normalization") is False:
        kind = None
    else:
        kind = "batch" if item.endswith("batch") else "group"
    epsilon = h.get("eps", 0.0 if "torchrl" in item else 1e-6)
    params = {"scale": {None: "none", "group": "group-std", "batch": "batch-std"}[kind], "epsilon": epsilon}
    return [("advantages", call("advantage", "grpo", params, batch), wanted)]


def reinforce_plus_plus(r: Mapping[str, Any]) -> Pairs:
    framework, h = r["item"].split("/")[2], r["hyper"]
    i, theirs = inputs(r), outputs(r)
    if framework in ("verl", "skyrl"):
        batch = paid(i["response_mask"], i["token_level_rewards"], "drop")
        ours = call("advantage", "reinforce-plus-plus", {"gamma": h["gamma"]}, batch)
        return [(k, ours[k], theirs[k][i["response_mask"] > 0]) for k in ("advantages", "returns")]
    if framework == "slime":
        rewards = last_of(i["loss_mask"], i["rewards"]) - h["kl_coef"] * i["kl"] * i["loss_mask"]
        batch = paid(i["loss_mask"], rewards, "error")
        ours = call("advantage", "reinforce-plus-plus", {"gamma": h["gamma"]}, batch)
        return [("returns", ours["returns"], theirs["returns"][i["loss_mask"] > 0])]
    # NeMo has no sum to go: the reward (or what is left of it without the group's mean) less the KL of each token, then whitened
    policy, reference = {"log_prob": i["logprobs_policy"]}, {"ref_log_prob": i["logprobs_reference"]}
    batch = paid(i["mask"], i["rewards"], "error", group_ids=i["prompt_ids"][:, 0].long(), **policy, **reference)
    x = call("advantage", "grpo", {"scale": "none"}, batch) if h["minus_baseline"] else batch["rewards"]
    x = spread(batch, x)
    if h["use_kl_in_reward"]:
        x = x - h["kl_coef"] * call("kl", h["kl_type"], {"cap": 10.0}, batch)
    ours = call("advantage", "whiten", {"unbiased": False}, batch, advantages=x)
    return [("advantages", ours, theirs["advantages"][i["mask"] > 0])]


def whiten(r: Mapping[str, Any]) -> Pairs:
    i, theirs, h = inputs(r), outputs(r), r["hyper"]
    x = i["advantages"] if "advantages" in i else i["values"]
    params = {"shift_mean": h.get("shift_mean", True), "unbiased": "skyrl" not in r["item"]}
    batch = Batch.from_padded(i["mask"], advantages=x)
    return [("y", call("advantage", "whiten", params, batch), theirs["y"][i["mask"] > 0])]


FAMILIES: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Pairs]], ...] = (
    (("kl/",), kl),
    (("kl_controller/",), controller),
    (("agg/",), agg),
    (("value/",), value_loss),
    (("adv/gae/",), gae),
    (("adv/reinforce_plus_plus/",), reinforce_plus_plus),
    (("norm/masked_whiten", "norm/distributed_masked_whiten", "norm/advantage_batch_normalize"), whiten),
    (("adv/grpo/verl", "adv/grpo/skyrl", "adv/grpo/nemo", "adv/grpo_vectorized/", "adv/rloo/verl", "adv/rloo/skyrl"), padded_groups),
    (("adv/rloo_vectorized/", "adv/rloo/openrlhf", "adv/group_norm/", "adv/dr_grpo/"), padded_groups),
    (("adv/", "norm/"), blocked_groups),
)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────

ROUNDED_INSIDE = {
    "adv/grpo/trl/": 1e-7,  # the degrees of freedom are float32
    "adv/grpo/verl/": 1e-7,  # the deviation of a singleton is a float32 one
    "adv/gae/openrlhf": 1e-5,  # where ours adds 1e-8 to the variance, it is a floor
    "value/clipped/verl": 1e-7,  # 1e-8 added to lengths
    "agg/openrlhf": 1e-7,  # the same
    "agg/roll/": 1e-7,  # the same
}
"""Items whose frameworks round or add an epsilon inside without their notes saying so, and what that costs."""


def tolerance(r: Mapping[str, Any]) -> tuple[float, float]:
    """Return ``(relative, absolute)``."""
    if "float32" in r["compute_dtype"]:
        return 2e-5, 2e-6
    if "float32" in r.get("notes", ""):
        return 1e-5, 1e-9
    return next((rtol for start, rtol in ROUNDED_INSIDE.items() if r["item"].startswith(start)), 1e-9), 1e-9


def differences(r: Mapping[str, Any]) -> list[str]:
    """Return what of a record ours does not meet."""
    family = next(f for starts, f in FAMILIES if r["item"].startswith(starts))
    rtol, atol = tolerance(r)
    found = []
    for what, ours, theirs in family(r):
        try:
            torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol)
        except AssertionError as error:
            found.append(f"{what}: {ours.tolist()} for {theirs.tolist()} ({' '.join(str(error).split())[:160]})")
    return found


def deliberate(identity: str) -> str | None:
    return next((key for key in DELIBERATE if identity == key or (key.endswith("/") and identity.startswith(key))), None)


COMPARED = [i for i in RECORDS if deliberate(i) is None]


@pytest.mark.parametrize("identity", COMPARED)
def test_ours_is_theirs(identity: str) -> None:
    assert differences(RECORDS[identity]) == []


@pytest.mark.parametrize("key", DELIBERATE)
def test_what_differs_on_purpose_does_differ(key: str) -> None:
    reason, sentence = DELIBERATE[key]
    assert reason in REASONS
    assert sentence.endswith(".")
    rows = [i for i in RECORDS if deliberate(i) == key]
    assert rows
    assert all(differences(RECORDS[i]) for i in rows)


def test_nothing_is_dropped_and_little_differs() -> None:
    on_purpose = [i for i in RECORDS if deliberate(i) is not None]
    assert len(RECORDS) == len(GOLDEN["records"]) == len(COMPARED) + len(on_purpose)
    assert len(on_purpose) < 0.1 * len(RECORDS)
