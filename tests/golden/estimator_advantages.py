"""Records of advantages and normalisations: what ours gives beside theirs."""

from typing import Any

import torch
from golden.records import Pairs, Record, Unmapped, call, inputs, outputs
from torch import Tensor

from lossary.batch import Batch
from lossary.registry import Level


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


def gae(r: Record) -> Pairs:
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
    batch = paid(mask, rewards, "drop", old_values=values, **more)
    ours = dict(call("advantage", "gae", params, batch))
    if h.get("gae_lambda_value") is not None:  # NeMo runs it once for the critic and once for the actor
        ours["returns"] = call("advantage", "gae", {**params, "lam": h["gae_lambda_value"]}, batch)["returns"]
    if h.get("gae_lambda_policy") is not None:
        ours["advantages"] = call("advantage", "gae", {**params, "lam": h["gae_lambda_policy"]}, batch)["advantages"]
    if framework in ("verl", "tunix", "nemo", "skyrl"):
        ours["advantages"] = call("advantage", "whiten", {}, batch, advantages=ours["advantages"])
    if framework == "openrlhf":
        ours["advantages"] = call("advantage", "whiten", {"unbiased": False}, batch, advantages=ours["advantages"])
    on = mask > 0
    return [(k, ours[k], theirs[k][on]) for k in ("advantages", "returns") if k in theirs]


def last_of(mask: Tensor, x: Tensor) -> Tensor:
    """Put each row's number on the last position of its mask."""
    out = torch.zeros_like(mask)
    for row in mask.any(1).nonzero().flatten().tolist():
        out[row, int(mask[row].nonzero()[-1])] = x[row]
    return out


def padded_groups(r: Record) -> Pairs:
    """Records on padded rewards with groups by name: verl and SkyRL, and NeMo and OpenRLHF with one reward per row."""
    _, item, framework, *_ = r["item"].split("/")
    h, i, theirs = r["hyper"], inputs(r), outputs(r)
    mask = next(i[k] for k in ("response_mask", "mask", "action_mask") if k in i)
    rewards = next(i[k] for k in ("token_level_rewards", "rewards", "sample_rewards") if k in i)
    in_blocks = torch.arange(len(mask)) // h.get("n_samples_per_prompt", len(mask))
    ids = i.get("index", i.get("uid", i["prompt_ids"][:, 0].long() if "prompt_ids" in i else in_blocks))
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


def returns_to_go(r: Record) -> Pairs:
    """OpenRLHF's REINFORCE: rewards, clipped or less their baseline, on the last token, less the KL of each token, then to go."""
    item, h, i, theirs = r["item"].split("/")[1], r["hyper"], inputs(r), outputs(r)
    mask, scores = i["action_mask"], i["sample_rewards"].clamp(*h["reward_clip_range"])
    ids = torch.arange(len(mask)) // h["n_samples_per_prompt"] if item == "reinforce_baseline" else torch.zeros(len(mask), dtype=torch.long)
    if item != "reinforce":
        scores = call("advantage", "grpo", {"scale": "none"}, paid(mask, scores, "error", group_ids=ids))
    batch = paid(mask, last_of(mask, scores) - h["kl_coef"] * i["kl"] * mask, "error")
    ours = dict(call("advantage", "reinforce-plus-plus", {"gamma": h["gamma"]}, batch))
    whitened = call("advantage", "whiten", {"unbiased": False}, batch, advantages=ours["returns"])
    ours["advantages"] = ours["returns"] if item == "flash_reinforce" else whitened
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns") if k in theirs]


def whitened_groups(r: Record) -> Pairs:
    """Rewards against their group's mean, or as they are, on every token and then whitened: verl's baseline and NeMo's raw reward."""
    i, theirs = inputs(r), outputs(r)
    if "index" in i:
        batch = paid(i["response_mask"], i["token_level_rewards"], "to-sequence", group_ids=i["index"])
        x, params = call("advantage", "grpo", {"scale": "none", "singleton": "reward"}, batch), {}
    else:
        batch = paid(i["mask"], i["rewards"], "error")
        x, params = batch["rewards"], {"unbiased": False}
    ours = call("advantage", "whiten", params, batch, advantages=spread(batch, x))
    on = i["response_mask" if "index" in i else "mask"] > 0
    return [(k, ours, x[on]) for k, x in theirs.items()]


def lambda_returns(r: Record) -> Pairs:
    """One trajectory that ends: the returns of GAE do not depend on the first value."""
    i, theirs = inputs(r), outputs(r)
    gamma = float(i["discount_t"][0])
    if i["discount_t"].tolist() != [gamma] * (len(i["r_t"]) - 1) + [0.0]:
        raise Unmapped(r)
    values = torch.cat([torch.zeros(1, dtype=torch.float64), i["v_t"][:-1]])
    batch = paid(torch.ones(1, len(values)), i["r_t"][None], "error", old_values=values[None])
    return [("returns", call("advantage", "gae", {"gamma": gamma, "lam": r["hyper"]["lambda_"]}, batch)["returns"], theirs["returns"])]


def kl_in_reward(r: Record) -> Pairs:
    i, theirs = inputs(r), outputs(r)
    batch = Batch.from_padded(torch.ones_like(i["old_log_prob"]), log_prob=i["old_log_prob"], ref_log_prob=i["ref_log_prob"])
    kl = batch.unpack(call("kl", "k1", {"log_ratio_bound": None}, batch))
    return [("rewards", i["token_level_scores"] - r["hyper"]["kl_ratio"] * kl, theirs["rewards"])]


def blocked_groups(r: Record) -> Pairs:
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
    leave_out = "rloo" in item or h.get("mean_leave1out")
    if item.startswith("norm/"):
        mean, kind = (h[a] for a in (("norm_mean_type", "norm_std_type") if "norm_std_type" in h else ("mean_level", "std_level")))
        if mean == "batch":
            batch, kind = blocks(batch["rewards"], len(batch)), {"batch": "group"}.get(kind, kind)
    elif leave_out or "prime" in item or "drgrpo" in item or item.endswith(("none", "plus_plus_baseline")):
        kind = None
    else:
        kind = "batch" if item.endswith("batch") else "group"
    if h.get("grpo_std_normalization") is False:
        kind = None
    epsilon = h.get("eps", 0.0 if "torchrl" in item else 1e-6)
    # AReaL's, TRL's and ms-swift's deviation of the step is that of the centred rewards: a second pass with one group
    twice = h.get("normalize_advantages") or (kind == "batch" and ("areal" in item or "reinforce_plus_plus/swift" in item))
    scale = {None: "none", "group": "group-std", "batch": "batch-std"}[None if twice else kind]
    if leave_out:
        ours = call("advantage", "rloo", {"singleton": "reward"}, batch)
    else:
        ours = call("advantage", "grpo", {"scale": scale, "epsilon": epsilon}, batch)
    if twice:
        ours = call("advantage", "grpo", {"epsilon": epsilon}, blocks(ours, len(batch)))
    return [("advantages", ours, wanted)]


def reinforce_plus_plus(r: Record) -> Pairs:
    framework, h = r["item"].split("/")[2], r["hyper"]
    i, theirs = inputs(r), outputs(r)
    if framework == "roll":  # the whole width and no whitening
        batch = paid(torch.ones_like(i["token_level_rewards"]), i["token_level_rewards"], "error")
        ours = call("advantage", "reinforce-plus-plus", {"gamma": h["gamma"]}, batch)["returns"]
        return [(k, ours, theirs[k].flatten()) for k in ("advantages", "returns")]
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


def whiten(r: Record) -> Pairs:
    i, theirs, h = inputs(r), outputs(r), r["hyper"]
    x = i["advantages"] if "advantages" in i else i["values"]
    params = {"shift_mean": h.get("shift_mean", True), "unbiased": "skyrl" not in r["item"]}
    batch = Batch.from_padded(i["mask"], advantages=x)
    return [("y", call("advantage", "whiten", params, batch), theirs["y"][i["mask"] > 0])]
