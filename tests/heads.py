"""A head over the tokens of a world, and the same loss the plain way: all logits at once."""

import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from worlds import World

import lossary
from lossary import LossHead

WIDTH, WORDS = 6, 7


def composed(sections, **rest):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lossary.RecipeWarning)
        return lossary.compose({"aggregation": "seq-mean-token-mean", **sections}, **rest)


def hidden_of(world, seed=0, dtype=torch.float64, garbage=0.0):
    """Hidden states ``[B, T, H]`` of a world's tokens, with garbage under its mask."""
    x = torch.randn(*world.mask.shape, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return world.dirty(x, garbage).to(dtype)


def layer(bias=True, dtype=torch.float64, words=WORDS, width=WIDTH):
    g = torch.Generator().manual_seed(5)
    made = torch.nn.Linear(width, words, bias=bias, dtype=dtype)
    for p in made.parameters():
        p.data = torch.randn(p.shape, generator=g, dtype=torch.float64).to(dtype)
    return made


def plain(objective, micro, hidden, linear, *, scale=1.0, softcap=None, wide=torch.float64, **given):
    """The loss of all logits at once."""
    z = linear(micro.pack(hidden)).to(wide)
    z = z if softcap is None else softcap * torch.tanh(z / softcap)
    log_p = (z * scale).log_softmax(-1)
    chosen = log_p.gather(-1, micro["token_ids"].long()[:, None]).squeeze(1)
    return objective.loss(micro, log_prob=chosen, entropy=-(log_p.exp() * log_p).sum(-1), logits=z * scale, **given)


def headed(objective, micro, hidden, linear, *, scale=1.0, softcap=None, chunk=4, grad_scale=None, **given):
    head = LossHead(linear, scale=scale, softcap=softcap, chunk_tokens=chunk)
    return objective.loss(micro, policy=head.on(hidden, grad_scale=grad_scale), **given)


def others(world, micro):
    """What other models give for a micro-batch."""
    given = {n: getattr(world, n)[micro.rows] for n in ("ref_logits", "teacher_logits", "values", "value_logits")}
    return {**given, "log_z": world.columns["log_z"][micro.rows]}


def measured(how, objective, world, *, hidden=None, bias=True, **options):
    """Loss, metrics and gradients of hidden states, weight and bias of a whole world by ``plain`` or ``headed``."""
    x = (hidden_of(world) if hidden is None else hidden).clone().requires_grad_()
    linear, micro = layer(bias, x.dtype), objective.weigh(objective.estimate(world.batch()))
    out = how(objective, micro, x, linear, **others(world, micro), **options)
    out.total.backward()
    grads = [g if g is not None else torch.zeros_like(p) for p, g in ((p, p.grad) for p in (x, *linear.parameters()))]
    return out.total.detach(), grads, objective.metrics(out)


def error(found, wanted):
    """Relative to the largest that is wanted."""
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


class Products(TorchDispatchMode):
    """Counts matrix products, each with the sizes of its factors."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in ("mm", "addmm", "addmm_", "bmm", "baddbmm", "matmul"):
            self.found.append([tuple(x.shape) for x in args if isinstance(x, torch.Tensor)][-2:])
        return func(*args, **(kwargs or {}))


def world(seed=1, dtype=torch.float64, **rest):
    return World(seed, dtype=dtype, **rest)
