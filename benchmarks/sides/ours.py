"""lossary. A batch crosses the border once per rollout and is weighed once per step, so neither stands inside a step here."""

import inspect
from typing import Any

import torch

import lossary

VERSION = lossary.__version__


class NotBuilt(Exception):
    """This figure needs something that the library does not have yet."""


def recipe(x: dict[str, Any]) -> dict[str, Any]:
    return {
        "policy_loss": {"use": "dual-clip", "clip_ratio_low": x["clip"], "clip_ratio_high": x["clip"], "clip_ratio_c": x["cap"]},
        "kl": {"use": "k3", "coef": x["kl_coef"]},
        "entropy": {"coef": x["entropy_coef"]},
        "aggregation": "token-mean",
    }


def weighed(x: dict[str, Any], compiled: bool = False) -> tuple[Any, Any]:
    options = {}
    if compiled:
        if "compile" not in inspect.signature(lossary.compose).parameters:
            raise NotBuilt("compose() takes no compile= yet")
        options = {"compile": True}
    objective = lossary.compose(recipe(x), **options)
    columns = {name: x[name] for name in ("old_log_prob", "ref_log_prob", "advantages")}
    return objective, objective.weigh(lossary.Batch.from_padded(x["mask"], **columns))


def loss(x: dict[str, Any], compiled: bool = False) -> Any:
    objective, batch = weighed(x, compiled)
    log_prob, entropy = (batch.pack(x[name]).detach().clone().requires_grad_() for name in ("log_prob", "entropy"))

    def step() -> Any:
        log_prob.grad = entropy.grad = None
        out = objective.loss(batch, log_prob=log_prob, entropy=entropy)
        out.total.backward()
        return out.total

    return step, lambda: {"loss": step(), "log_prob": batch.unpack(log_prob.grad), "entropy": batch.unpack(entropy.grad)}


def whole(
    log_prob: lossary.PerToken,
    old_log_prob: lossary.PerToken,
    advantages: lossary.PerToken,
    *,
    clip_ratio_low: float,
    clip_ratio_high: float,
    clip_ratio_c: float,
) -> lossary.PerToken:
    """Dual-clip under a scope that is too wide for one pass: the same numbers by the other way."""
    known = {"clip_ratio_low": clip_ratio_low, "clip_ratio_high": clip_ratio_high, "clip_ratio_c": clip_ratio_c}
    result: torch.Tensor = lossary.catalog().get("policy_loss", "dual-clip").function(log_prob, old_log_prob, advantages, **known)[0]
    return result


def head(x: dict[str, Any], how: str = "one-pass", compiled: bool = False, chunk: int = 512) -> Any:
    """From hidden states to gradients; ``recompute`` is what a loss gets that looks at more than one token."""
    if not hasattr(lossary, "LossHead"):
        raise NotBuilt("there is no LossHead yet")
    said, more = recipe(x), []
    if how == "recompute":
        more = [lossary.policy_loss(scope="sequence")(whole)]
        said["policy_loss"]["use"] = "whole"
    objective = lossary.compose(said, components=more)
    columns = {name: x[name] for name in ("old_log_prob", "ref_log_prob", "advantages")}
    batch = objective.weigh(lossary.Batch.from_padded(x["mask"], **columns, token_ids=x["ids"].view(x["mask"].shape)))
    linear = torch.nn.Linear(x["weight"].shape[1], x["weight"].shape[0], bias=False, device="meta")
    linear.weight = torch.nn.Parameter(x["weight"].clone())
    layer = lossary.LossHead(linear, chunk_tokens=chunk, compile=compiled)
    hidden = x["hidden"].clone().requires_grad_()

    def step() -> Any:
        hidden.grad = layer.weight.grad = None
        out = objective.loss(batch, policy=layer.on(hidden))
        out.total.backward()
        return out.total

    return step, lambda: {"loss": step(), "hidden": hidden.grad, "weight": layer.weight.grad}


def gae(x: dict[str, Any], border: bool = False) -> Any:
    """The estimator on packed columns; with ``border`` also the way in from ``[B, T]`` and the way out."""
    function = lossary.catalog().get("advantage", "gae").function
    columns = {"token_rewards": x["rewards"], "old_values": x["values"]}
    batch = lossary.Batch.from_padded(x["mask"], **columns)
    said = {"gamma": x["gamma"], "lam": x["lam"]}

    def inside() -> Any:
        return function(batch["token_rewards"], batch["old_values"], batch.sequences, **said)["advantages"]

    def across() -> Any:
        there = lossary.Batch.from_padded(x["mask"], **columns)
        return there.unpack(function(there["token_rewards"], there["old_values"], there.sequences, **said)["advantages"])

    return (across, lambda: {"advantages": across()}) if border else (inside, lambda: {"advantages": batch.unpack(inside())})


def groups(x: dict[str, Any]) -> Any:
    function = lossary.catalog().get("advantage", "grpo").function
    ones = torch.ones(len(x["rewards"]), 1, dtype=torch.bool, device=x["rewards"].device)
    batch = lossary.Batch.from_padded(ones, rewards=x["rewards"], group_ids=x["group_ids"])

    def step() -> Any:
        return function(batch["rewards"], batch.sequences)

    return step, lambda: {"advantages": step()}
