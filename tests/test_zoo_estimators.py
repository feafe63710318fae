"""The wider zoo of estimators, aggregations and value losses against other frameworks' numbers, and where none has them against plain loops."""

import json
from collections.abc import Callable, Mapping
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

DELIBERATE: Mapping[str, tuple[str, str]] = {}
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


FAMILIES: tuple[tuple[tuple[str, ...], Callable[[Mapping[str, Any]], Pairs]], ...] = (
    (("adv/gae/nemo",), gae_decoupled),
    (("adv/agentic_reinforce/",), gae_turn),
    (("adv/vtrace/",), vtrace),
    (("adv/grpo/nemo",), leave_one_out),
    (("adv/reinforce_plus_plus_baseline/verl", "adv/opo/", "adv/gpg/"), verl_groups),
    (("adv/reinforce_plus_plus/swift/",), swift_baseline),
    (("adv/flash_reinforce/",), flash_reinforce),
    (("adv/remax/",), remax),
)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────

ROUNDED_INSIDE: Mapping[str, float] = {}
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
