"""verl's own functions, on padded ``[B, T]`` tensors as its trainers call them."""

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict
from verl.trainer.ppo import core_algos
from verl.utils.experimental.torch_functional import FusedLinearForPPO
from verl.utils.torch_functional import entropy_from_logits_with_chunking, logprobs_from_logits
from verl.workers.config import ActorConfig
from verl.workers.utils import losses

VERSION = version("verl")


def _config(x: dict[str, Any]) -> Any:
    return ActorConfig(strategy="fsdp", rollout_n=8, use_dynamic_bsz=True, clip_ratio=x["clip"], clip_ratio_c=x["cap"])


def _objective(config: Any, x: dict[str, Any], log_prob: Any, entropy: Any) -> tuple[Any, Any]:
    """The order of verl's ``ppo_loss``, without its containers: see ``step``."""
    mask = x["mask"]
    loss, metrics = core_algos.compute_policy_loss_vanilla(
        old_log_prob=x["old_log_prob"], log_prob=log_prob, advantages=x["advantages"], response_mask=mask, config=config
    )
    loss = loss - x["entropy_coef"] * core_algos.agg_loss(entropy, mask, "token-mean")
    kl = core_algos.kl_penalty(log_prob, x["ref_log_prob"], "low_var_kl")
    return loss + x["kl_coef"] * core_algos.agg_loss(kl, mask, "token-mean"), metrics


def loss(x: dict[str, Any]) -> Any:
    config = _config(x)
    log_prob, entropy = x["log_prob"].requires_grad_(), x["entropy"].requires_grad_()

    def step() -> Any:
        log_prob.grad = entropy.grad = None
        total, _ = _objective(config, x, log_prob, entropy)
        total.backward()
        return total

    return step, lambda: {"loss": step(), "log_prob": log_prob.grad, "entropy": entropy.grad}


def step(x: dict[str, Any]) -> Any:
    """verl's real entry: the engine's loss function on jagged containers."""
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=8,
        use_dynamic_bsz=True,
        clip_ratio=x["clip"],
        clip_ratio_c=x["cap"],
        entropy_coeff=x["entropy_coef"],
        use_kl_loss=True,
        kl_loss_coef=x["kl_coef"],
    )
    mask = x["mask"]
    lengths = mask.sum(1).tolist()
    rows = {name: [v[:n] for v, n in zip(x[name], lengths, strict=True)] for name in ("old_log_prob", "ref_log_prob", "advantages")}
    rows["mask"] = [torch.ones(n, dtype=torch.long) for n in lengths]
    one = torch.zeros(1, dtype=torch.long)

    def jagged(parts: list[Any]) -> Any:
        return torch.nested.as_nested_tensor(parts, layout=torch.jagged)

    data = TensorDict(
        {
            "prompts": jagged([one for _ in lengths]),
            "responses": jagged(rows["mask"]),
            "response_mask": jagged(rows["mask"]),
            "old_log_probs": jagged(rows["old_log_prob"]),
            "ref_log_prob": jagged(rows["ref_log_prob"]),
            "advantages": jagged(rows["advantages"]),
        },
        batch_size=[len(lengths)],
    )
    for name, value in (("dp_size", 1), ("batch_num_tokens", sum(lengths)), ("global_batch_size", None)):
        data[name] = NonTensorData(value)
    # A model speaks of prompt and response, one position ahead.
    flat = {
        name: torch.cat([torch.cat([v[:n], v.new_zeros(1)]) for v, n in zip(x[name], lengths, strict=True)]).requires_grad_()
        for name in ("log_prob", "entropy")
    }

    def both() -> Any:
        for leaf in flat.values():
            leaf.grad = None
        total, _ = losses.ppo_loss(config, {"log_probs": flat["log_prob"], "entropy": flat["entropy"]}, data)
        total.backward()
        return total

    def told() -> Any:
        total, out = both(), {}
        for name, leaf in flat.items():
            out[name] = torch.zeros_like(x[name])
            for i, part in enumerate(leaf.grad.split([n + 1 for n in lengths])):
                out[name][i, : lengths[i]] = part[:-1]
        return {"loss": total, **out}

    return both, told


def head(x: dict[str, Any], how: str) -> Any:
    config = _config(x)
    hidden, weight = x["hidden"].requires_grad_(), x["weight"].requires_grad_()
    fused = FusedLinearForPPO()

    def step() -> Any:
        hidden.grad = weight.grad = None
        if how == "fused":
            log_prob, entropy = fused(hidden, weight, x["ids"])
        else:
            logits = hidden @ weight.T
            log_prob, entropy = logprobs_from_logits(logits, x["ids"]), entropy_from_logits_with_chunking(logits)
        total, _ = _objective(config, x, log_prob.view(x["mask"].shape), entropy.view(x["mask"].shape))
        total.backward()
        return total

    return step, lambda: {"loss": step(), "hidden": hidden.grad, "weight": weight.grad}


def gae(x: dict[str, Any]) -> Any:
    mask = x["mask"].to(x["rewards"].dtype)

    def step() -> Any:
        return core_algos.compute_gae_advantage_return(x["rewards"], x["values"], mask, x["gamma"], x["lam"])

    # Its advantages come out whitened; its returns are advantages + values before that.
    return step, lambda: {"advantages": step()[1] - x["values"]}


def groups(x: dict[str, Any], how: str) -> Any:
    rewards, mask = x["rewards"].view(-1, 1), torch.ones_like(x["rewards"]).view(-1, 1)
    index = np.array([f"prompt-{i}" for i in x["group_ids"].tolist()], dtype=object)
    function = {"loop": core_algos.compute_grpo_outcome_advantage, "vectorized": core_algos.compute_grpo_vectorized_outcome_advantage}[how]

    def step() -> Any:
        return function(rewards, mask, index)

    return step, lambda: {"advantages": step()[0].flatten()}
