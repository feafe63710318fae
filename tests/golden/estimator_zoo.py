"""Records of the wider zoo of advantages and normalisers: what ours gives beside theirs."""

from collections.abc import Mapping
from typing import Any

import torch
from golden.estimator_advantages import blocked_groups, padded_groups, paid, returns_to_go, to_go, whitened_groups
from golden.records import Pairs, Record, call, value
from torch import Tensor

from lossary.batch import Batch

# ── reading a record ─────────────────────────────────────────────────────────────────────────────────────────────────


def decoded(x: Any) -> Any:
    """Decode also what lies in mappings and plain lists of numbers."""
    if isinstance(x, dict) and "shape" not in x:
        return {k: decoded(v) for k, v in x.items()}
    if isinstance(x, list) and all(isinstance(v, int | float) for v in x):
        return torch.tensor(x, dtype=torch.float64)
    return value(x)


def read(r: Record) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return ``(hyperparameters, inputs, outputs)``."""
    return r["hyper"], {k: decoded(v) for k, v in r["inputs"].items()}, {k: decoded(v) for k, v in r["outputs"].items()}


def grouped(i: Mapping[str, Any], size: int = 8) -> Any:
    """Return the groups of a record, by whatever name."""
    if "prompt_ids" in i:
        return i["prompt_ids"][:, 0].long()
    return i.get("index", i.get("uid", torch.arange(8) // size))


def runs(mask: Tensor) -> Tensor:
    """Number the runs of sampled tokens in each row, from 0."""
    out = torch.zeros_like(mask, dtype=torch.long)
    for row in range(mask.shape[0]):
        run = -1
        for t in range(mask.shape[1]):
            run += int(mask[row, t] > 0 and (t == 0 or mask[row, t - 1] == 0))
            out[row, t] = max(run, 0)
    return out


def single(rewards: Tensor, size: int, **columns: Any) -> Batch:
    """Return one sequence of one token per reward, in groups that lie side by side."""
    n = rewards.shape[0]
    return paid(torch.ones(n, 1), rewards, "error", group_ids=torch.arange(n) // size, **columns)


def advantage(name: str, params: Mapping[str, Any], batch: Batch, **made: Tensor) -> Any:
    return call("advantage", name, params, batch, **made)


# ── advantages with a critic ─────────────────────────────────────────────────────────────────────────────────────────


def gae_decoupled(r: Record) -> Pairs:
    h, i, theirs = read(r)
    lam = h["gae_lambda"]
    params = {"gamma": h["gae_gamma"], "lam_value": h["gae_lambda_value"], "lam_policy": h["gae_lambda_policy"]}
    params = {k: lam if v is None else v for k, v in params.items()}
    batch = paid(i["mask"], i["rewards"], "drop", old_values=i["values"])
    ours = dict(advantage("gae-decoupled", {**params, "length_adaptive_alpha": h["length_adaptive_alpha"] or None}, batch))
    ours["advantages"] = advantage("whiten", {}, batch, advantages=ours["advantages"])
    return [(k, ours[k], theirs[k][i["mask"] > 0]) for k in ("advantages", "returns")]


def gae_turn(r: Record) -> Pairs:
    """ROLL pays a turn what stands on its last token and discounts once per turn: a critic of 0, a lambda of 1."""
    h, i, theirs = read(r)
    mask, rewards = i["mask"], i["token_level_rewards"]
    ends = (mask > 0) & (torch.cat([mask[:, 1:], torch.zeros(mask.shape[0], 1)], 1) == 0)
    batch = paid(mask, torch.where(ends, rewards, 0.0), "error", old_values=torch.zeros_like(mask), turns=runs(mask))
    ours = advantage("gae-turn", {"gamma": h["gamma"]}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


def vtrace(r: Record) -> Pairs:
    h, i, theirs = read(r)
    row = {k: v[None] for k, v in i.items()}
    columns = {"old_values": row["v_tm1"], "old_log_prob": row["rho_tm1"].log(), "rollout_log_prob": torch.zeros_like(row["rho_tm1"])}
    batch = paid(torch.ones_like(row["r_t"]), row["r_t"], "error", **columns)
    params = {"gamma": 0.99, "lam": h["lambda_"], **{k: h[k] for k in ("clip_rho_threshold", "clip_pg_rho_threshold")}}
    assert i["discount_t"].tolist() == [0.99] * 9 + [0.0]  # one trajectory that ends
    ours = advantage("vtrace", params, batch)
    return [("advantages", ours["advantages"], theirs["pg_advantage"]), ("errors", ours["returns"] - i["v_tm1"], theirs["errors"])]


# ── advantages from groups and steps ─────────────────────────────────────────────────────────────────────────────────


def leave_one_out(r: Record) -> Pairs:
    h, i, theirs = read(r)
    if not h["use_leave_one_out_baseline"]:
        return padded_groups(r)
    batch = paid(i["mask"], i["rewards"], "error", group_ids=grouped(i))
    params = {"scale": "others-std" if h["normalize_rewards"] else "none", "epsilon": h["eps"]}
    ours = batch.sequences.spread(advantage("grpo-leave-one-out", params, batch))
    return [("advantages", ours, theirs["advantages"][i["mask"] > 0])]


VERL_GROUPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "reinforce_plus_plus_baseline": ("reinforce-plus-plus-baseline", {"singleton": "reward"}),
    "opo": ("opo", {"singleton": "reward"}),
    "gpg": ("gpg", {"singleton": "reward", "count": "nonzero-rewards"}),
}


def verl_groups(r: Record) -> Pairs:
    _, i, theirs = read(r)
    name, params = VERL_GROUPS[r["item"].split("/")[1]]
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    ours = advantage(name, params, batch)
    ours = ours if ours.shape == batch.sequences.index.shape else batch.sequences.spread(ours)
    more = whitened_groups(r) if name == "reinforce-plus-plus-baseline" else []
    return [*more, ("advantages", ours, theirs["advantages"][mask > 0])]


def swift_baseline(r: Record) -> Pairs:
    h, _, theirs = read(r)
    batch = single(theirs["rewards"], h["num_generations"])
    if r["item"].endswith("/group"):
        return blocked_groups(r)
    ours = advantage("reinforce-plus-plus-baseline", {"over": "sequences", "epsilon": h["eps"]}, batch)
    return [*blocked_groups(r), ("advantages", ours, theirs["advantages"])]


def flash_reinforce(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask = i["action_mask"]
    batch = paid(mask, i["sample_rewards"], "error")
    ours = batch.sequences.spread(advantage("reinforce-batch-mean", {}, batch))
    return [*returns_to_go(r), ("advantages", ours, theirs["advantages"][mask > 0] + h["kl_coef"] * to_go(i["kl"], mask)[mask > 0])]


def remax(r: Record) -> Pairs:
    _, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "drop", baseline_rewards=i["reward_baselines"])
    ours = advantage("remax", {}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


# ── the best of a group ──────────────────────────────────────────────────────────────────────────────────────────────


def grpo_passk(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    params = {"scale": "group-std" if h["norm_adv_by_std_in_grpo"] else "none", "epsilon": h["epsilon"]}
    return [("advantages", batch.sequences.spread(advantage("grpo-passk", params, batch)), theirs["advantages"][mask > 0])]


def one_group(r: Record) -> Pairs:
    h, i, theirs = read(r)
    name, params = {
        "adv/passk_analytic": ("passk-analytic", {"k": h.get("k", 1), "epsilon": h.get("eps", 0.0)}),
        "adv/pkpo": ("pkpo", {"k": h.get("k", 2)}),
        "adv/max_rl/prime": ("maxrl", {"epsilon": 0.0}),
    }[r["item"]]
    return [("advantages", advantage(name, params, single(i["rewards"], i["rewards"].shape[0])), theirs["advantages"])]


def maxrl(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    ours = advantage("maxrl", {"epsilon": h["epsilon"], "singleton": "reward"}, batch)
    return [("advantages", batch.sequences.spread(ours), theirs["advantages"][mask > 0])]


def optimal_token_baseline(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask, turns = i["response_mask"], "tir" in r["item"]
    columns = {k: i[k] for k in ("sum_pi_squared",)} | {"old_log_prob": i["old_log_probs"]}
    if "rollout_is_weights" in i:
        columns["correction"] = i["rollout_is_weights"]
    batch = paid(
        mask, i["token_level_rewards"], "drop", group_ids=grouped(i), positions=torch.arange(mask.shape[1]).expand_as(mask), **columns
    )
    name = "tir-optimal-token-baseline" if turns else "optimal-token-baseline"
    ours = advantage(name, {"singleton": "reward", **h}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


# ── components, turns and process rewards ────────────────────────────────────────────────────────────────────────────


def gdpo(r: Record) -> Pairs:
    h, i, theirs = read(r)
    framework = r["item"].split("/")[2]
    if framework == "verl":
        mask, parts = i["response_mask"], torch.stack(list(i["reward_components"].values()), 1)
        batch = paid(mask, parts[:, 0], "error", group_ids=grouped(i), component_rewards=parts)
        params = {"weights": h["weights"], "epsilon": h["epsilon"], "singleton": "reward"}
        return [("advantages", advantage("gdpo", params, batch), theirs["advantages"][mask > 0])]
    if framework == "nemo":
        parts = torch.stack(list(i["components"].values()), 1)
        batch = paid(torch.ones(len(parts), 1), parts[:, 0], "error", group_ids=grouped(i), component_rewards=parts)
        baseline = "others" if h["use_leave_one_out_baseline"] else "group"
        params = {"weights": h["reward_weights"], "over": "sequences", "baseline": baseline, "step_epsilon": 0.0}
        return [("advantages", advantage("gdpo", params, batch), theirs["advantages_per_sample"])]
    parts, wanted = i["rewards_per_func"], theirs["advantages"]
    batch = single(torch.zeros(len(parts), dtype=torch.float64), h["num_generations"], component_rewards=parts)
    epsilon = h["eps"] if framework == "trl" else 1e-8
    params = {"weights": i["reward_weights"].tolist(), "over": "sequences", "epsilon": epsilon, "step_epsilon": epsilon}
    return [("advantages", advantage("gdpo", params, batch), wanted)]


def mt_grpo(r: Record) -> Pairs:
    """Their advantages are normalised already: each row meets its mirror image in a group of two, whose mean is 0."""
    h, i, theirs = read(r)
    split = i["result_segment_indices"][:, None]
    mask = i["completion_mask"]
    segment = torch.cat([torch.zeros(4, 1), (mask[:, 1:] != mask[:, :-1]).double()], 1).cumsum(1)  # they count tools' segments too
    turns = (segment >= split.clamp(min=0)).long()
    outcome = torch.where(split[:, 0] > 0, i["outcome_adv"], i["combined_adv"])
    twice = {"turn_rewards": i["turn_adv"][:, None], "group_ids": torch.arange(4)}
    twice = {k: torch.cat([v, -v if v.is_floating_point() else v]) for k, v in twice.items()}
    batch = paid(torch.cat([mask, mask]), torch.cat([outcome, -outcome]), "error", turns=torch.cat([turns, turns]), **twice)
    ours = advantage("mt-grpo", {"turn_advantage_coef": h["turn_advantage_coef"], "scale": "none"}, batch)
    wanted = theirs["advantages"][mask > 0]
    return [("advantages", ours, torch.cat([wanted, -wanted]))]


def grpo_per_turn(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask, scores = i["response_mask"], r["inputs"]["turn_scores"]
    table = torch.zeros(len(scores), max(map(len, scores)), dtype=torch.float64)
    for row, given in enumerate(scores):
        table[row, : len(given)] = torch.tensor(given, dtype=torch.float64)
    turns = torch.minimum(runs(mask), torch.tensor([[len(x) - 1] for x in scores]))  # what has no score shares the last one's
    batch = paid(mask, table[:, 0], "error", group_ids=grouped(i), turn_rewards=table, turns=turns)
    params = {"gamma": h["gamma"], "scale": "group-std" if h["norm_adv_by_std_in_grpo"] else "none", "epsilon": h["epsilon"]}
    ours = advantage("grpo-per-turn", {**params, "singleton": "reward"}, batch)
    return [("advantages", ours, theirs["advantages"][mask > 0])]


def prime(r: Record) -> Pairs:
    h, i, theirs = read(r)
    mask = i["mask"]
    columns = {"prm_log_prob": i["rm_scores"], "ref_log_prob": torch.zeros_like(mask)}
    batch = paid(mask, i["gt_scores"].sum(1), "error", group_ids=torch.arange(8) // h["n_samples"], **columns)
    ours = advantage("prime", {"beta": 1.0, **{k: h[k] for k in ("reward_model_gamma", "verifier_gamma")}}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


# ── normalisers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def openrlhf(r: Record) -> Pairs:
    """Rewards to go with the KL paid token by token, then normalised."""
    h, i, theirs = read(r)
    mask = i["action_mask"]
    batch = paid(mask, i["sample_rewards"], "error", group_ids=grouped(i, h["n_samples_per_prompt"]))
    rewards = advantage("grpo", {"scale": "none"}, batch) if "baseline" in r["item"] else batch["rewards"]
    tokens = batch.sequences.place_last(rewards) - h["kl_coef"] * i["kl"][mask > 0]
    values = torch.zeros_like(tokens)
    gamma = 1.0 if "baseline" in r["item"] else h["gamma"]
    returns = advantage("gae", {"gamma": gamma}, batch, token_rewards=tokens, old_values=values)["returns"]
    ours = advantage("batch-normalise", {"std_norm": not h["no_std_norm"]}, batch, advantages=returns)
    more = [] if h["no_std_norm"] else returns_to_go(r)
    return [*more, ("advantages", ours, theirs["advantages"][mask > 0]), ("returns", returns, theirs["returns"][mask > 0])]


def raw_reward(r: Record) -> Pairs:
    _, i, theirs = read(r)
    batch = paid(i["mask"], i["rewards"], "error")
    ours = advantage("batch-normalise", {}, batch, advantages=batch.sequences.spread(batch["rewards"]))
    return [*whitened_groups(r), ("advantages", ours, theirs["advantages"][i["mask"] > 0])]


def areal(r: Record) -> Pairs:
    h, i, theirs = read(r)
    x = i["x"] if "x" in i else i["r"].reshape(-1, 1)
    mask = i.get("loss_mask", torch.ones_like(x))
    batch = Batch.from_padded(mask, advantages=x, group_ids=torch.arange(len(x)) // h["group_size"])
    params = {k: h[k] or "none" for k in ("mean_level", "std_level")} | {k: h[k] for k in ("mean_leave1out", "std_unbiased")}
    ours = advantage("group-normalise", {**params, "epsilon": h["eps"]}, batch)
    same = "r" in i and (h["std_unbiased"] or not h["std_level"])  # what grpo and rloo give too
    return [*(blocked_groups(r) if same else []), ("y", ours, theirs["y"].reshape(x.shape)[mask > 0])]


def sequence_whiten(r: Record) -> Pairs:
    h, i, theirs = read(r)
    batch = Batch.from_padded(i["mask"], advantages=i["tensor"])
    return [("y", advantage("sequence-whiten", {"floor": h["eps"]}, batch), theirs["y"][i["mask"] > 0])]
