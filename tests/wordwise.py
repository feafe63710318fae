"""Helpers of the tests over the whole vocabulary: random logits, explicit sums, and what is kept for backward."""

import torch

N, V, K = 6, 11, 4


INF = float("inf")


def random(*shape, seed=0, scale=2.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def kl(a, b):
    """The sum as it is written."""
    return torch.where(a > 0, a * (a.log() - b.log()), 0.0).sum(-1)


def value_and_grad(f, logits, weights=None):
    leaf = logits.detach().clone().requires_grad_()
    found = f(leaf)
    (grad,) = torch.autograd.grad((found if weights is None else found * weights).sum(), leaf)
    return found.detach(), grad


def close(a, b, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def masked(z, seed):
    return torch.where(torch.rand(z.shape, generator=torch.Generator().manual_seed(seed)) < 0.3, -INF, z)


def kept_for_backward(f, logits):
    """How many tensors of the logits' size the graph keeps beside the logits themselves."""
    kept = {}

    def pack(x):
        if x.numel() >= logits.numel() and x.untyped_storage().data_ptr() != logits.untyped_storage().data_ptr():
            kept[x.untyped_storage().data_ptr()] = x  # held, or its address would be used again
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        found = f(logits)
    return len(kept), found
