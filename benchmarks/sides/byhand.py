"""What one would write without any library: the plain loss, the plain head, and the bounds that no program passes."""

from typing import Any

import torch

VERSION = torch.__version__


def objective(x: dict[str, Any], log_prob: Any, entropy: Any | None) -> Any:
    """Dual-clip + k3 - entropy, token-mean: every formula once, in the dtype of what comes in. Padded, mask by selection."""
    mask, count = x["mask"], x["mask"].sum()
    old, ref, advantages = (x[name].to(log_prob.dtype) for name in ("old_log_prob", "ref_log_prob", "advantages"))
    ratio = (log_prob - old).clamp(-20, 20).exp()
    surrogate = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - x["clip"], 1 + x["clip"]))
    policy = torch.where(advantages < 0, torch.minimum(surrogate, -advantages * x["cap"]), surrogate)
    apart = (ref - log_prob).clamp(-20, 20)
    each = policy + x["kl_coef"] * (apart.exp() - apart - 1)
    if entropy is not None:
        each = each - x["entropy_coef"] * entropy
    return torch.where(mask, each, 0).sum() / count


def loss(x: dict[str, Any]) -> Any:
    log_prob, entropy = x["log_prob"].requires_grad_(), x["entropy"].requires_grad_()

    def step() -> Any:
        log_prob.grad = entropy.grad = None
        total = objective(x, log_prob, entropy)
        total.backward()
        return total

    return step, lambda: {"loss": step(), "log_prob": log_prob.grad, "entropy": entropy.grad}


def step(x: dict[str, Any]) -> Any:
    """Return the raw function of one step on packed tokens: the same arithmetic, accuracy and metrics as ours, and nothing around it.

    Sums are kept in float64, metrics as (sum, count), the weights of the tokens are known beforehand, as they are in ours.
    """
    mask, low, high, cap = x["mask"], 1 - x["clip"], 1 + x["clip"], x["cap"]
    log_prob, entropy = (x[name][mask].clone().requires_grad_() for name in ("log_prob", "entropy"))
    old, ref, advantages = (x[name][mask] for name in ("old_log_prob", "ref_log_prob", "advantages"))
    weight, exact = torch.full_like(old, 1 / len(old)), torch.float64
    kl_coef, entropy_coef = (torch.tensor(x[name], dtype=exact, device=old.device) for name in ("kl_coef", "entropy_coef"))
    n = float(len(old))

    def forward() -> Any:
        log_ratio = (log_prob - old).clamp(-20, 20)
        ratio, gains = log_ratio.exp(), advantages >= 0
        usable = torch.where(gains, ratio.clamp(max=high), ratio.clamp(min=low, max=cap))
        plain = ratio.detach()
        policy = (weight * (-advantages * usable)).sum(dtype=exact)
        apart = (ref - log_prob).clamp(-20, 20)
        kl = (weight * (apart.exp() - 1 - apart)).sum(dtype=exact)
        bonus = (weight * -entropy).sum(dtype=exact)
        total = policy + kl_coef * kl + entropy_coef * bonus
        clipped = torch.where(gains, plain > high, plain < low) & (advantages != 0)
        metrics = {
            "pg_loss": (policy.detach(), 1.0),
            "kl_loss": (kl.detach(), 1.0),
            "entropy_loss": (bonus.detach(), 1.0),
            "loss": (total.detach(), 1.0),
            "pg_clipfrac": (clipped.sum(dtype=exact), n),
            "pg_clipfrac_lower": ((~gains & (plain > cap)).sum(dtype=exact), n),
            "ppo_kl": ((-log_ratio.detach()).sum(dtype=exact), n),
            "entropy": (entropy.detach().sum(dtype=exact), n),
        }
        return total.float(), metrics

    def both() -> Any:
        log_prob.grad = entropy.grad = None
        total, _ = forward()
        total.backward()
        return total

    def told() -> Any:
        total = both()
        out = {
            name: torch.zeros_like(x["log_prob"]).masked_scatter(mask, g)
            for name, g in (("log_prob", log_prob.grad), ("entropy", entropy.grad))
        }
        return {"loss": total, **out}

    return both, told


def head(x: dict[str, Any], with_entropy: bool = True) -> Any:
    hidden, weight = x["hidden"].requires_grad_(), x["weight"].requires_grad_()
    wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32

    def step() -> Any:
        hidden.grad = weight.grad = None
        table = (hidden @ weight.T).to(wide).log_softmax(-1)
        log_prob = table.gather(-1, x["ids"][:, None]).squeeze(-1)
        entropy = -(table.exp() * table).sum(-1) if with_entropy else None
        total = objective(x, log_prob.view(x["mask"].shape), None if entropy is None else entropy.view(x["mask"].shape))
        total.backward()
        return total

    return step, lambda: {"loss": step(), "hidden": hidden.grad, "weight": weight.grad}


def gemms(x: dict[str, Any]) -> Any:
    """The three products that a head cannot do without: logits, and the gradients of hidden states and weight."""
    hidden, weight = x["hidden"].detach(), x["weight"].detach()
    slopes = torch.empty(hidden.shape[0], weight.shape[0], dtype=hidden.dtype, device=hidden.device)
    to_hidden, to_weight = torch.empty_like(hidden), torch.empty_like(weight)

    def step() -> Any:
        torch.mm(hidden, weight.T, out=slopes)
        torch.mm(slopes, weight, out=to_hidden)
        torch.mm(slopes.T, hidden, out=to_weight)

    return step, lambda: {}


def stream(n: int, device: Any) -> Any:
    """``c = a + b``: 12 bytes per element move, with nothing to compute. The bound of everything element-wise."""
    a, b = torch.ones(n, device=device), torch.ones(n, device=device)
    c = torch.empty_like(a)
    return (lambda: torch.add(a, b, out=c)), 12 * n


def copy(n: int, device: Any) -> Any:
    a = torch.ones(n, device=device)
    c = torch.empty_like(a)
    return (lambda: c.copy_(a)), 8 * n


def square(n: int, dtype: Any, device: Any) -> Any:
    a, b = torch.randn(n, n, dtype=dtype, device=device), torch.randn(n, n, dtype=dtype, device=device)
    c = torch.empty_like(a)
    return (lambda: torch.mm(a, b, out=c)), 2 * n**3
