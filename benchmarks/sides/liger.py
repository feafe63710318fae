"""Liger's fused linear GRPO: hidden states to gradients, without an entropy term."""

from importlib.metadata import version
from typing import Any

from liger_kernel.chunked_loss import LigerFusedLinearGRPOLoss

VERSION = version("liger-kernel")


def head(x: dict[str, Any]) -> Any:
    shape = x["mask"].shape
    # It knows one advantage per sequence, so the case gives all tokens of a sequence the same.
    advantages = x["advantages"][:, 0].contiguous()
    hidden, weight = x["hidden"].requires_grad_(), x["weight"].requires_grad_()
    function = LigerFusedLinearGRPOLoss(
        beta=x["kl_coef"], compiled=False, epsilon_low=x["clip"], epsilon_high=x["clip"], loss_type="bnpo", delta=x["cap"]
    )

    def step() -> Any:
        hidden.grad = weight.grad = None
        total, _ = function(
            hidden.view(*shape, -1),
            weight,
            x["ids"].view(shape),
            x["mask"].int(),
            advantages,
            ref_per_token_logps=x["ref_log_prob"],
            old_per_token_logps=x["old_log_prob"],
        )
        total.backward()
        return total

    return step, lambda: {"loss": step(), "hidden": hidden.grad, "weight": weight.grad}
