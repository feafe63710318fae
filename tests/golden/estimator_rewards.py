"""Records of rewards that are shaped or missing, and of sequences that go: what ours gives beside theirs."""

from typing import Any

import torch
from golden.estimator_advantages import blocked_groups, paid
from golden.estimator_zoo import advantage, read, single
from golden.records import COMPONENTS, ESTIMATORS, Pairs, Record, Unmapped, call, value
from torch import Tensor

from lossary.batch import Batch

# ── rewards ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def shaped(name: str, params: dict[str, Any], batch: Batch) -> Tensor:
    found: Tensor = call("reward", name, params, batch)
    return found


def of_lengths(lengths: Tensor, rewards: Tensor | float, **columns: Any) -> Batch:
    """Return sequences of so many sampled tokens."""
    each = rewards if isinstance(rewards, Tensor) and rewards.dim() else torch.full((len(lengths),), float(rewards), dtype=torch.float64)
    return Batch.from_packed(lengths.long(), rewards=each, **columns)


def overlong(r: Record) -> Pairs:
    h, i, theirs = read(r)
    framework = r["item"].split("/")[2]
    names = {
        "verl": ("max_resp_len", "overlong_buffer_len", "penalty_factor"),
        "openrlhf": ("max_new_tokens", "overlong_buffer_len", "overlong_penalty_factor"),
        "areal": ("max_response_length", "overlong_tokens", "penalty_factor"),
        "nemo": ("max_response_length", "buffer", "penalty"),
        "trl": ("max_completion_len", "soft_punish_cache", ""),
    }[framework]
    ours = dict(zip(("max_resp_len", "overlong_buffer_len", "penalty_factor"), (h.get(n, 1.0) for n in names), strict=True))
    lengths = i.get("lengths", i.get("response_length"))
    batch = of_lengths(lengths, i.get("rewards", i.get("base_reward", 0.0)))  # TRL pays the penalty alone
    return [("rewards", shaped("overlong", {**ours, "bounded": framework in ("openrlhf", "trl")}, batch), theirs["rewards"])]


def stop_properly(r: Record) -> Pairs:
    h, i, theirs = read(r)
    batch = single(i["rewards"], 1, truncated=i["truncated"])
    return [("rewards", shaped("stop-properly", {"penalty_coef": h["coef"]}, batch), theirs["rewards"])]


def repetition(r: Record) -> Pairs:
    h, _, theirs = read(r)
    said = r["inputs"]["completion_ids"]
    batch = of_lengths(torch.tensor([len(x) for x in said]), 0.0, token_ids=torch.tensor([t for x in said for t in x]))
    return [("rewards", shaped("repetition", h, batch), theirs["rewards"])]


def clipped_less_kl(r: Record) -> Pairs:
    """OpenRLHF's reward of each token: the clipped outcome on the last one, less the KL."""
    h, i, theirs = read(r)
    batch = paid(i["action_mask"], i["r"], "error", old_log_prob=i["kl"])
    outcome = shaped("clip-rewards", {"reward_clip_range": h["reward_clip_range"]}, batch)
    ours = batch.sequences.place_last(outcome) - h["kl_coef"] * batch["old_log_prob"]
    return [("reward", ours, theirs["reward"][i["action_mask"] > 0])]


def pf_ppo(r: Record) -> Pairs:
    """Their weights are chances, which only count beside each other: both are brought to the mean 1."""
    h, i, theirs = read(r)
    params = {"reweight_method": h["method"], "weight_pow": h["weight_pow"]}
    ours, keep = call("correction", "pf-ppo", params, single(i["scores"], 1))
    assert keep is None
    return [("weights", ours, theirs["weights"] / theirs["weights"].mean())]


def length_penalty(r: Record) -> Pairs:
    """prime-rl's GRPO; a sequence's turns are made by cutting it into that many."""
    h, i, theirs = read(r)
    if h["length_penalty"] is None:
        return blocked_groups(r)
    lengths, count = i["num_output_tokens"].long(), len(i["rewards"])
    turns = [t * int(k) // int(n) for n, k in zip(lengths, i["num_turns"], strict=True) for t in range(int(n))]
    read_in = (i["num_total_tokens"] - i["num_output_tokens"]).long()
    batch = of_lengths(lengths, i["rewards"], prompt_lengths=read_in, turns=torch.tensor(turns), group_ids=[0] * count)
    ours = advantage("grpo", {"scale": "none"}, batch, rewards=shaped("length-penalty", h["length_penalty"], batch))
    return [("advantages", ours, theirs["advantages"])]


# ── rewards that are missing ─────────────────────────────────────────────────────────────────────────────────────────


def components(r: Record) -> Pairs:
    """TRL's sums of what applies; where everything does, also what ``grpo`` and ``rloo`` give on the sums."""
    h, i, theirs = read(r)
    table = i["rewards_per_func"] if "rewards_per_func" in i else i["r"].reshape(-1, 1)
    size = h.get("num_generations", i["r"].shape[1] if "r" in i else None)
    params = {"weights": i["reward_weights"].tolist() if "reward_weights" in i else [1.0], "epsilon": h["eps"]}
    if "rloo" in r["item"]:
        params |= {"baseline": "others", "scale": "none"}
    else:
        params["scale"] = {"group": "group-std", "batch": "batch-std", "none": "none"}[r["item"].split("/")[-1]]
    nothing = torch.zeros(len(table), dtype=torch.float64)
    ours = advantage("grpo-components", params, single(nothing, size, component_rewards=table))
    if h.get("normalize_advantages"):
        absent = table.isnan().all(1)
        again = torch.where(absent, float("nan"), ours)[:, None]
        ours = advantage("grpo-components", {"epsilon": h["eps"]}, single(nothing, len(table), component_rewards=again))
    more = [] if table.isnan().any() else blocked_groups(r)
    return [*more, ("advantages", ours, theirs["advantages"])]


# ── advantages that read what others do not ──────────────────────────────────────────────────────────────────────────


def opd(r: Record) -> Pairs:
    _, i, theirs = read(r)
    batch = Batch.from_padded(i["mask"], teacher_log_prob=i["teacher_logprobs"], old_log_prob=i["prev_logprobs"])
    return [("advantages", advantage("opd", {}, batch), theirs["advantages"][i["mask"] > 0])]


def rlsd(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask = i["mask"]
    batch = Batch.from_padded(mask, advantages=i["base_advantages"], teacher_log_prob=i["teacher_logps"], old_log_prob=i["policy_logps"])
    ours = advantage("rlsd", h, batch, advantages=batch.sequences.spread(batch["advantages"]))
    return [("adv", ours, theirs["adv"][mask > 0])]


def a2po(r: Record) -> Pairs:
    """One answer of reward 0 per prompt: its advantage is the value, turned around."""
    h, i, theirs = read(r)
    batch = single(torch.zeros(len(i["rewards"]), dtype=torch.float64), 1, frozen_rewards=i["rewards"])
    return [("v_star", -advantage("a2po", h, batch), theirs["v_star"])]


def less_kl(r: Record) -> Pairs:
    """slime gives the KL itself and rewards that are centred already: a reference of 0, and no baseline here."""
    h, i, theirs = read(r)
    mask = i["loss_mask"]
    batch = paid(mask, i["rewards"], "error", old_log_prob=i["kl"], ref_log_prob=torch.zeros_like(mask))
    spread = batch.sequences.spread(batch["rewards"])
    ours = advantage("kl-penalty", {"kl_coef": h["kl_coef"], "log_ratio_bound": None}, batch, advantages=spread)
    return [("advantages", ours, theirs["advantages"][mask > 0])]


def running(r: Record) -> Pairs:
    """The steps that came before are said by name; each is committed before the next."""
    _, _, theirs = read(r)
    names, here = r["hyper"]["sequence"].partition(" share ")[0].split(" then "), r["inputs"]["r"]
    if not isinstance(here, str) or here.split(".")[1] not in names:
        raise Unmapped(r)
    c = COMPONENTS["advantage", "running-baseline"]
    params = c.params(epsilon=1e-6).model_dump()
    assert c.init is not None
    state, ours = c.init(**params), torch.zeros(0)
    for name in names[: names.index(here.split(".")[1]) + 1]:
        rewards = value(ESTIMATORS["fixtures"][name]["r"]).flatten()
        ours, state = c.function(rewards, single(rewards, 1).sequences, state, **params)
    deviation = (state["square"] / (state["count"] - 1)).sqrt()
    return [("y", ours, theirs["y"]), ("mean", state["mean"], theirs["mean"]), ("std", deviation, theirs["std"])]


# ── sequences and tokens that go ─────────────────────────────────────────────────────────────────────────────────────


def zero_variance(r: Record) -> Pairs:
    h, _, theirs = read(r)
    rewards = torch.tensor(r["inputs"]["rewards"], dtype=torch.float64)
    mask = torch.tensor(r["inputs"]["loss_masks"] or [[1]] * len(rewards))
    batch = paid(mask, rewards, "error", group_ids=r["inputs"]["uids"])
    kept = call("filter", "group-spread", {"tolerance": h["tol"]}, batch)
    wanted = torch.zeros(len(rewards), dtype=torch.float64)
    wanted[[int(place) for place in theirs["kept_indices"]]] = 1.0
    return [("kept", kept.double(), wanted)]


def high_entropy(r: Record) -> Pairs:
    """Which tokens learn: where an advantage of -1 at a ratio of 1 makes the loss 1."""
    h, i, theirs = read(r)
    mask, zero = i["mask"], torch.zeros_like(i["mask"])
    batch = Batch.from_padded(mask, log_prob=zero, old_log_prob=zero, advantages=zero - 1, entropy=i["entropies"])
    loss, _ = call("policy_loss", "high-entropy", {"top_entropy_quantile": 1 - h["threshold"]}, batch)
    return [("mask", batch.unpack(loss), theirs["mask_out"])]
