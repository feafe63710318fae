"""The wider zoo of estimators, aggregations and value losses against other frameworks' numbers, and where none has them against plain loops."""

import json
from collections.abc import Callable, Mapping
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import pytest
import torch
from test_golden_estimators import call, paid, to_go
from torch import Tensor

from lossary.batch import Batch

GOLDEN = json.loads((Path(__file__).parent / "golden" / "zoo_estimators.json").read_text())
RECORDS: Mapping[str, Any] = {r["id"]: r for r in GOLDEN["records"]}
REASONS = ("framework-bug", "counts-padding", "reads-hole", "split-dependent", "unclamped", "hidden-float32")

_TAIL = (
    "framework-bug",
    "verl looks for the tail at the column that equals a count of tokens, which holes make wrong; ours asks each column.",
)
DELIBERATE: Mapping[str, tuple[str, str]] = {
    "adv/reinforce/openrlhf/3": ("reads-hole", "OpenRLHF discounts once for each position of a hole; ours only for sampled tokens."),
    "adv/reinforce/openrlhf/5": ("reads-hole", "OpenRLHF discounts once for each position of a hole; ours only for sampled tokens."),
    "adv/optimal_token_baseline/verl/3": _TAIL,
    "adv/optimal_token_baseline/verl/5": _TAIL,
    "adv/optimal_token_baseline/verl/6": _TAIL,
    "adv/optimal_token_baseline/verl/7": (
        "counts-padding",
        "A row of padding makes verl compare its neighbour with itself; ours is alone.",
    ),
    "adv/optimal_token_baseline/verl/8": _TAIL,
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
        return torch.tensor([float(v) for v in x["data"]], dtype=torch.float64).reshape(x["shape"])
    if isinstance(x, dict):
        return {k: value(v) for k, v in x.items()}
    if isinstance(x, list) and all(isinstance(v, int | float) for v in x):
        return torch.tensor(x, dtype=torch.float64)
    return x


def read(r: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return ``(hyperparameters, inputs, outputs)``."""
    return r["hyper"], {k: value(v) for k, v in r["inputs"].items()}, {k: value(v) for k, v in r["outputs"].items()}


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


def gae_decoupled(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    lam = h["gae_lambda"]
    params = {"gamma": h["gae_gamma"], "lam_value": h["gae_lambda_value"], "lam_policy": h["gae_lambda_policy"]}
    params = {k: lam if v is None else v for k, v in params.items()}
    batch = paid(i["mask"], i["rewards"], "drop", old_values=i["values"])
    ours = dict(advantage("gae-decoupled", {**params, "length_adaptive_alpha": h["length_adaptive_alpha"] or None}, batch))
    ours["advantages"] = advantage("whiten", {}, batch, advantages=ours["advantages"])
    return [(k, ours[k], theirs[k][i["mask"] > 0]) for k in ("advantages", "returns")]


def gae_turn(r: Mapping[str, Any]) -> Pairs:
    """ROLL pays a turn what stands on its last token and discounts once per turn: a critic of 0, a lambda of 1."""
    h, i, theirs = read(r)
    mask, rewards = i["mask"], i["token_level_rewards"]
    ends = (mask > 0) & (torch.cat([mask[:, 1:], torch.zeros(mask.shape[0], 1)], 1) == 0)
    batch = paid(mask, torch.where(ends, rewards, 0.0), "error", old_values=torch.zeros_like(mask), turns=runs(mask))
    ours = advantage("gae-turn", {"gamma": h["gamma"]}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


def vtrace(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    row = {k: v[None] for k, v in i.items()}
    columns = {"old_values": row["v_tm1"], "old_log_prob": row["rho_tm1"].log(), "rollout_log_prob": torch.zeros_like(row["rho_tm1"])}
    batch = paid(torch.ones_like(row["r_t"]), row["r_t"], "error", **columns)
    params = {"gamma": 0.99, "lam": h["lambda_"], **{k: h[k] for k in ("clip_rho_threshold", "clip_pg_rho_threshold")}}
    assert i["discount_t"].tolist() == [0.99] * 9 + [0.0]  # one trajectory that ends
    ours = advantage("vtrace", params, batch)
    return [("advantages", ours["advantages"], theirs["pg_advantage"]), ("errors", ours["returns"] - i["v_tm1"], theirs["errors"])]


# ── advantages from groups and steps ─────────────────────────────────────────────────────────────────────────────────


def leave_one_out(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    batch = paid(i["mask"], i["rewards"], "error", group_ids=grouped(i))
    params = {"scale": "others-std" if h["normalize_rewards"] else "none", "epsilon": h["eps"]}
    ours = batch.sequences.spread(advantage("grpo-leave-one-out", params, batch))
    return [("advantages", ours, theirs["advantages"][i["mask"] > 0])]


VERL_GROUPS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "reinforce_plus_plus_baseline": ("reinforce-plus-plus-baseline", {"singleton": "reward"}),
    "opo": ("opo", {"singleton": "reward"}),
    "gpg": ("gpg", {"singleton": "reward", "count": "nonzero-rewards"}),
}


def verl_groups(r: Mapping[str, Any]) -> Pairs:
    _, i, theirs = read(r)
    name, params = VERL_GROUPS[r["item"].split("/")[1]]
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    ours = advantage(name, params, batch)
    ours = ours if ours.shape == batch.sequences.index.shape else batch.sequences.spread(ours)
    return [("advantages", ours, theirs["advantages"][mask > 0])]


def swift_baseline(r: Mapping[str, Any]) -> Pairs:
    h, _, theirs = read(r)
    batch = single(theirs["rewards"], h["num_generations"])
    if r["item"].endswith("/group"):
        return [("advantages", advantage("grpo", {"epsilon": h["eps"]}, batch), theirs["advantages"])]
    ours = advantage("reinforce-plus-plus-baseline", {"over": "sequences", "epsilon": h["eps"]}, batch)
    return [("advantages", ours, theirs["advantages"])]


def flash_reinforce(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    mask = i["action_mask"]
    batch = paid(mask, i["sample_rewards"], "error")
    ours = batch.sequences.spread(advantage("reinforce-batch-mean", {}, batch))
    return [("advantages", ours, theirs["advantages"][mask > 0] + h["kl_coef"] * to_go(i["kl"], mask)[mask > 0])]


def remax(r: Mapping[str, Any]) -> Pairs:
    _, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "drop", baseline_rewards=i["reward_baselines"])
    ours = advantage("remax", {}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


# ── the best of a group ──────────────────────────────────────────────────────────────────────────────────────────────


def grpo_passk(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    params = {"scale": "group-std" if h["norm_adv_by_std_in_grpo"] else "none", "epsilon": h["epsilon"]}
    return [("advantages", batch.sequences.spread(advantage("grpo-passk", params, batch)), theirs["advantages"][mask > 0])]


def one_group(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    name, params = {
        "adv/passk_analytic": ("passk-analytic", {"k": h.get("k", 1), "epsilon": h.get("eps", 0.0)}),
        "adv/pkpo": ("pkpo", {"k": h.get("k", 2)}),
        "adv/max_rl/prime": ("maxrl", {"epsilon": 0.0}),
    }[r["item"]]
    return [("advantages", advantage(name, params, single(i["rewards"], i["rewards"].shape[0])), theirs["advantages"])]


def maxrl(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    mask = i["response_mask"]
    batch = paid(mask, i["token_level_rewards"], "to-sequence", group_ids=grouped(i))
    ours = advantage("maxrl", {"epsilon": h["epsilon"], "singleton": "reward"}, batch)
    return [("advantages", batch.sequences.spread(ours), theirs["advantages"][mask > 0])]


def optimal_token_baseline(r: Mapping[str, Any]) -> Pairs:
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


def gdpo(r: Mapping[str, Any]) -> Pairs:
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
    there = ~parts.isnan().any(1)  # a sequence that no function rewarded is not there, and gets 0
    groups = (torch.arange(len(parts)) // h["num_generations"])[there]
    batch = paid(torch.ones(len(groups), 1), parts[there, 0], "error", group_ids=groups, component_rewards=parts[there])
    epsilon = h["eps"] if framework == "trl" else 1e-8
    params = {"weights": i["reward_weights"].tolist(), "over": "sequences", "epsilon": epsilon, "step_epsilon": epsilon}
    return [("advantages", advantage("gdpo", params, batch), wanted[there]), ("absent", 0 * wanted[~there], wanted[~there])]


def mt_grpo(r: Mapping[str, Any]) -> Pairs:
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


def grpo_per_turn(r: Mapping[str, Any]) -> Pairs:
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


def prime(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    mask = i["mask"]
    columns = {"prm_log_prob": i["rm_scores"], "ref_log_prob": torch.zeros_like(mask)}
    batch = paid(mask, i["gt_scores"].sum(1), "error", group_ids=torch.arange(8) // h["n_samples"], **columns)
    ours = advantage("prime", {"beta": 1.0, **{k: h[k] for k in ("reward_model_gamma", "verifier_gamma")}}, batch)
    return [(k, ours[k], theirs[k][mask > 0]) for k in ("advantages", "returns")]


# ── normalisers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def openrlhf(r: Mapping[str, Any]) -> Pairs:
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
    return [("advantages", ours, theirs["advantages"][mask > 0]), ("returns", returns, theirs["returns"][mask > 0])]


def raw_reward(r: Mapping[str, Any]) -> Pairs:
    _, i, theirs = read(r)
    batch = paid(i["mask"], i["rewards"], "error")
    ours = advantage("batch-normalise", {}, batch, advantages=batch.sequences.spread(batch["rewards"]))
    return [("advantages", ours, theirs["advantages"][i["mask"] > 0])]


def areal(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    x = i["x"] if "x" in i else i["r"].reshape(-1, 1)
    mask = i.get("loss_mask", torch.ones_like(x))
    batch = Batch.from_padded(mask, advantages=x, group_ids=torch.arange(len(x)) // h["group_size"])
    params = {k: h[k] or "none" for k in ("mean_level", "std_level")} | {k: h[k] for k in ("mean_leave1out", "std_unbiased")}
    ours = advantage("group-normalise", {**params, "epsilon": h["eps"]}, batch)
    return [("y", ours, theirs["y"].reshape(x.shape)[mask > 0])]


def sequence_whiten(r: Mapping[str, Any]) -> Pairs:
    h, i, theirs = read(r)
    batch = Batch.from_padded(i["mask"], advantages=i["tensor"])
    return [("y", advantage("sequence-whiten", {"floor": h["eps"]}, batch), theirs["y"][i["mask"] > 0])]


FAMILIES: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Pairs]], ...] = (
    (("adv/gae/nemo",), gae_decoupled),
    (("adv/agentic_reinforce/",), gae_turn),
    (("adv/vtrace/",), vtrace),
    (("adv/grpo/nemo",), leave_one_out),
    (("adv/reinforce_plus_plus_baseline/verl", "adv/opo/", "adv/gpg/"), verl_groups),
    (("adv/reinforce_plus_plus/swift/",), swift_baseline),
    (("adv/flash_reinforce/",), flash_reinforce),
    (("adv/remax/",), remax),
    (("adv/gdpo/", "adv/grpo/swift/gdpo", "adv/grpo/trl/normalize_then_sum/"), gdpo),
    (("adv/mt_grpo",), mt_grpo),
    (("adv/grpo_per_step/",), grpo_per_turn),
    (("adv/prime_rloo",), prime),
    (("adv/reinforce_baseline/openrlhf", "adv/reinforce/openrlhf"), openrlhf),
    (("adv/raw_reward/",), raw_reward),
    (("norm/areal/",), areal),
    (("norm/masked_normalize/",), sequence_whiten),
    (("adv/grpo_passk/",), grpo_passk),
    (("adv/passk_analytic", "adv/pkpo", "adv/max_rl/"), one_group),
    (("adv/maxrl/",), maxrl),
    (("adv/optimal_token_baseline/", "adv/tir_optimal_token_baseline/"), optimal_token_baseline),
)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────

ROUNDED_INSIDE: Mapping[str, float] = {
    "adv/grpo/trl/": 1e-7,  # the degrees of freedom are float32
    "adv/reinforce/openrlhf": 1e-5,  # the count of tokens is float32
    "adv/reinforce_baseline/openrlhf": 1e-5,  # the same
    "adv/grpo_per_step/": 1e-5,  # statistics of the group are float32
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


# ── where no framework has numbers: plain loops ──────────────────────────────────────────────────────────────────────


def binomial(n: int, k: int) -> int:
    return comb(n, k) if 0 <= k <= n else 0


@pytest.mark.parametrize("k", [2, 3, 5])
def test_pkpo_is_the_sum_over_all_subsets(k: int) -> None:
    """Real rewards, ties, groups of 7, 4 and 1, not side by side, some smaller than k."""
    rewards = torch.tensor([0.3, 2.0, -1.0, 0.3, 0.3, 5.5, 2.0, 1.0, 9.0, 1e3, 1e3 + 1, 1e3, 1e3 - 2], dtype=torch.float64)
    groups = torch.tensor([7, 7, 7, 2, 7, 7, 7, 7, 9, 2, 2, 2, 7])
    batch = paid(torch.ones(13, 1), rewards, "error", group_ids=groups)
    want = torch.zeros(13, dtype=torch.float64)
    for i in range(13):
        others = [j for j in range(13) if groups[j] == groups[i] and j != i]
        for chosen in combinations(others, k - 1):
            best = max(float(rewards[j]) for j in chosen)
            want[i] += (max(best, float(rewards[i])) - best) / binomial(len(others) + 1, k)
    torch.testing.assert_close(advantage("pkpo", {"k": k}, batch), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("right", range(7))
@pytest.mark.parametrize("k", [1, 2, 5, 6])
def test_passk_is_the_mean_over_all_draws(right: int, k: int) -> None:
    """Each draw of k is a "group answer" that earns 1 if one of it is right; its advantage is shared by its members."""
    n, rewards = 6, torch.tensor([float(j < right) for j in range(6)], dtype=torch.float64)
    draws = [(c, float(any(rewards[j] > 0 for j in c))) for c in combinations(range(n), k)]
    mean = sum(x for _, x in draws) / len(draws)
    deviation = (mean * (1 - mean)) ** 0.5
    want = []
    for i in range(n):
        mine = [x for c, x in draws if i in c]
        want.append((sum(mine) / len(mine) - mean) / (deviation + 1e-6))
    ours = advantage("passk-analytic", {"k": k}, single(rewards, n))
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_passk_with_too_few_answers_is_zero() -> None:
    ours = advantage("passk-analytic", {"k": 3}, single(torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64), 2))
    assert (ours == 0).all()


@pytest.mark.parametrize("name", ["grpo-passk", "pkpo", "maxrl", "opo", "gpg", "grpo-leave-one-out", "passk-analytic"])
def test_ties_and_singletons_are_exactly_zero(name: str) -> None:
    """A tied group is one whose rewards differ by rounding, and dividing that by itself would be noise of size 1."""
    rewards = torch.tensor([0.1 + 0.2, 0.3, 0.3, 7.0], dtype=torch.float64)
    batch = paid(torch.ones(4, 1), rewards, "error", group_ids=[0, 0, 0, 1])
    assert (advantage(name, {"threshold": 0.0} if name == "passk-analytic" else {}, batch) == 0).all()


@pytest.mark.parametrize("tail", [True, False])
def test_the_optimal_token_baseline_by_a_plain_loop(tail: bool) -> None:
    """On a batch with holes, where a column holds tokens of some rows only."""
    g = torch.Generator().manual_seed(0)
    mask = torch.rand(6, 8, generator=g) < 0.6
    rewards, old, q = (torch.rand(6, 8, generator=g, dtype=torch.float64) for _ in range(3))
    ids = [0, 1, 0, 1, 0, 0]
    positions = torch.arange(8).expand(6, 8)
    batch = paid(mask, rewards * mask, "error", group_ids=ids, old_log_prob=-old, sum_pi_squared=q, positions=positions)
    ours = advantage("optimal-token-baseline", {"handle_zero_tail": tail}, batch)["advantages"]
    to_come = to_go(rewards, mask.double())
    energy = ((1 - 2 * (-old).exp() + q) * mask).cumsum(1)
    want = []
    for i in range(6):
        for t in range(8):
            members = [j for j in range(6) if ids[j] == ids[i] and mask[j, t]]
            top, bottom = sum(to_come[j, t] * energy[j, t] for j in members), sum(energy[j, t] for j in members)
            base = 0.0 if tail and len(members) == 1 else top / (bottom + 1e-8) if mask[i, t] else 0.0
            want += [float(to_come[i, t] - base)] if mask[i, t] else []
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("bootstrap", ["never", "truncated"])
def test_gae_by_the_turn_by_a_plain_loop(bootstrap: str) -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.rand(5, 9, generator=g) < 0.7
    rewards, values = (torch.randn(5, 9, generator=g, dtype=torch.float64) for _ in range(2))
    after, cut = torch.randn(5, generator=g, dtype=torch.float64), torch.tensor([1.0, 0, 1, 0, 0])
    turns = torch.arange(9).expand(5, 9) // 4
    more = {"truncated": cut, "bootstrap_values": after}
    batch = paid(mask, rewards * mask, "error", old_values=values, turns=turns, **more)
    ours = advantage("gae-turn", {"gamma": 0.9, "lam": 0.8, "bootstrap": bootstrap}, batch)["advantages"]
    want: list[float] = []
    for row in range(5):
        rest, value_next, turn_next, found = 0.0, float(after[row] * cut[row]) if bootstrap == "truncated" else 0.0, -1, []
        for t in [int(x) for x in mask[row].nonzero().flatten()][::-1]:
            same = int(turns[row, t]) == turn_next
            gamma, lam = (1.0, 1.0) if same else (0.9, 0.8)
            rest = float(rewards[row, t]) + gamma * value_next - float(values[row, t]) + gamma * lam * rest
            value_next, turn_next = float(values[row, t]), int(turns[row, t])
            found.append(rest)
        want += found[::-1]
    torch.testing.assert_close(ours, torch.tensor(want, dtype=torch.float64), rtol=1e-9, atol=1e-9)
