"""The inputs of every figure, the same for both sides, and the float64 results that both are compared with."""

from typing import Any

import torch
from sides import byhand
from torch import Tensor

COEFFICIENTS = {"clip": 0.2, "cap": 3.0, "kl_coef": 0.1, "entropy_coef": 0.01}


def _lengths(g: torch.Generator, rows: int, width: int, low: float, high: float) -> Tensor:
    return (width * torch.linspace(low, high, rows)).round().clamp(min=1)[torch.randperm(rows, generator=g)]


def loss(rows: int, width: int, fill: float = 0.4) -> dict[str, Any]:
    """Log-probabilities and entropies of ragged responses that fill 0.4 of ``[rows, width]``."""
    g = torch.Generator().manual_seed(0)
    mask = torch.arange(width) < _lengths(g, rows, width, 0.05, 2 * fill - 0.05)[:, None]
    log_prob = -torch.rand(rows, width, generator=g) * 3
    near = {name: log_prob + 0.3 * torch.randn(rows, width, generator=g) for name in ("old_log_prob", "ref_log_prob")}
    entropy, advantages = torch.rand(rows, width, generator=g), torch.randn(rows, width, generator=g)
    return {"mask": mask, "log_prob": log_prob, "entropy": entropy, "advantages": advantages, **near, **COEFFICIENTS}


def head(rows: int, width: int, hidden: int, vocab: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Hidden states and a head; every position is a sampled token, and a sequence's tokens share their advantage (Liger knows no other)."""
    g = torch.Generator().manual_seed(1)
    n = rows * width
    x: dict[str, Any] = {"hidden": torch.randn(n, hidden, generator=g), "weight": torch.randn(vocab, hidden, generator=g) * hidden**-0.5}
    x |= {"ids": torch.randint(vocab, (n,), generator=g), "mask": torch.ones(rows, width, dtype=torch.bool)}
    x |= {name: x[name].to(dtype) for name in ("hidden", "weight")}
    with torch.no_grad():
        score = torch.cat([(h @ x["weight"].float().T).log_softmax(-1) for h in x["hidden"].float().split(256)])
    log_prob = score.gather(-1, x["ids"][:, None]).view(rows, width)
    x |= {name: log_prob + 0.3 * torch.randn(rows, width, generator=g) for name in ("old_log_prob", "ref_log_prob")}
    return {**x, "advantages": torch.randn(rows, 1, generator=g).expand(rows, width).contiguous(), **COEFFICIENTS}


def gae(rows: int, width: int, holes: bool) -> dict[str, Any]:
    """Values, and rewards on every token; with holes a fifth of the positions inside the responses belongs to tools."""
    g = torch.Generator().manual_seed(2)
    mask = torch.arange(width) < _lengths(g, rows, width, 0.5, 1.0)[:, None]
    if holes:
        mask &= (torch.rand(rows, -(-width // 32), generator=g) > 0.2).repeat_interleave(32, 1)[:, :width]
        mask[:, 0] = True
    rewards, values = (torch.randn(rows, width, generator=g) for _ in range(2))
    return {"mask": mask, "rewards": torch.where(mask, rewards, 0.0), "values": values, "gamma": 1.0, "lam": 0.95}


def groups(rows: int, each: int = 8) -> dict[str, Any]:
    g = torch.Generator().manual_seed(3)
    return {"rewards": torch.randn(rows, generator=g), "group_ids": torch.arange(rows) // each}


# ── float64 ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def exact(case: str, x: dict[str, Any], device: torch.device, **options: Any) -> dict[str, Tensor]:
    """Return what a figure's sides should compute, from the plainest code in float64."""
    wide = {n: v.to(device, torch.float64 if v.is_floating_point() else v.dtype) if isinstance(v, Tensor) else v for n, v in x.items()}
    if case in ("loss", "head"):
        told = getattr(byhand, case)(wide, **options)[1]
        return {name: value.detach().cpu() for name, value in told().items()}
    return {"advantages": _gae(wide) if case == "gae" else _groups(wide)}


def _gae(x: dict[str, Any]) -> Tensor:
    out, carry, after = torch.zeros_like(x["values"]).cpu().T.contiguous(), 0.0, 0.0
    rewards, values, mask = (x[name].cpu().T.contiguous() for name in ("rewards", "values", "mask"))
    for t in reversed(range(out.shape[0])):
        new = rewards[t] + x["gamma"] * after - values[t] + x["gamma"] * x["lam"] * carry
        carry, after = torch.where(mask[t], new, carry), torch.where(mask[t], values[t], after)
        out[t] = carry
    return out.T.contiguous()


def _groups(x: dict[str, Any]) -> Tensor:
    each = x["rewards"].cpu().view(-1, int((x["group_ids"] == 0).sum()))
    return ((each - each.mean(1, keepdim=True)) / (each.std(1, keepdim=True) + 1e-6)).flatten()


def error(found: dict[str, Tensor], true: dict[str, Tensor], mask: Tensor | None = None) -> float:
    """Return the largest error of any result, relative to the largest value of that result; only sampled tokens count."""
    worst = 0.0
    for name, value in true.items():
        apart, size = (found[name].detach().cpu().double() - value).abs(), value.abs()
        if mask is not None and value.shape == mask.shape:
            apart, size = apart[mask], size[mask]
        worst = max(worst, (apart.max() / size.max()).item())
        if not bool(found[name].isfinite().all()) and mask is None:
            return float("inf")
    return worst
